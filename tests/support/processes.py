"""Finds processes and waits for them."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from poslab.pictures import drawing
from poslab.pictures.drawing import CAN_FORK, reap


def processes_of(session: int) -> list[str]:
    """The living processes of a session: number and command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        with suppress(ProcessLookupError):
            if os.getsid(process.pid) == session and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.info['cmdline'] or [])}")
    return found


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
