"""Finds processes and waits for them."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from poslab.pictures import drawing
from poslab.pictures.drawing import CAN_FORK, reap


def processes_of(session: int) -> list[str]:
    """The living processes of a session, as `ps` shows them."""
    listed = subprocess.run(["ps", "-eo", "sid=,pid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 3) for line in listed.splitlines()]
    return [f"{row[1]} {row[3]}" for row in rows if int(row[0]) == session and not row[2].startswith("Z")]


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


needs_fork = pytest.mark.skipif(not CAN_FORK, reason="pictures are drawn in place here")


def children() -> set[int]:
    """Processes that this one has started and that have not ended, nor are about to."""
    deadline = time.monotonic() + 5
    while drawing._ENDING and time.monotonic() < deadline:
        reap()
        time.sleep(0.001)
    listed = Path("/proc/self/task").glob("*/children")
    return {int(pid) for path in listed for pid in path.read_text().split()}
