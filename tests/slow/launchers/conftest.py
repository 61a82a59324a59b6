"""Sweeps that run while a test does something to them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.paths import ROOT
from support.processes import processes_of, wait_for


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``begin(*overrides, under_way=n)``: a sweep in a session of its own, when n of its jobs have a checkpoint."""
    started: list[subprocess.Popen[str]] = []

    def begin(*overrides: str, under_way: int) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, str(ROOT / "train.py"), "-m", *overrides, "diagnostics=none", "logger=none"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # Under a test runner in the background the signal is ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        started.append(child)
        checkpoints = "outputs/sweeps/*/*/checkpoints/last.ckpt"
        wait_for(lambda: child.poll() is not None or len(list(tmp_path.glob(checkpoints))) >= under_way, 120)
        assert child.poll() is None, child.communicate()
        return child

    yield begin
    for child in started:
        if processes_of(child.pid):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
