"""Commands as a person types them, in a child process or in this one."""

import contextlib
import logging
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT


def start(*arguments: str, cwd: Path, own_group: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
    """``python train.py`` with these arguments, the way a person types it, in a folder of its own."""
    return subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        # What it and all that it starts are sent does not reach the tests.
        start_new_session=own_group,
    )


def only_sweep(cwd: Path) -> Path:
    """The folder of the one sweep that was started in this folder."""
    (found,) = (cwd / "outputs/sweeps").iterdir()
    return found


def typed(folder: Path, *arguments: str) -> Any:
    """``python train.py`` with these arguments in ``folder``, in this process: what it gives `sys.exit`, or None."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        patch.setattr(sys, "argv", ["train.py", *arguments])
        patch.setenv("HYDRA_FULL_ERROR", "0")  # the program sets it: put it back afterwards
        try:
            runpy.run_path(str(ROOT / "train.py"), run_name="__main__")
        except SystemExit as end:
            return end.code
        finally:
            for handler in set(root.handlers) - set(handlers):
                handler.close()
            root.handlers[:] = handlers
            root.setLevel(level)
    return None


# A child that says at its end whether torch was imported.
WATCHED = """
import atexit, runpy, sys
atexit.register(lambda: print("torch" if "torch" in sys.modules else "no torch", file=sys.stderr))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def seconds_of_children() -> float:
    """Processor seconds of finished child processes, which a busy machine stretches less than time."""
    used = os.times()
    return used.children_user + used.children_system


def watched(script: str, *arguments: str, cwd: Path) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a script of the product, which says at its end whether torch was imported; and its processor seconds."""
    began = seconds_of_children()
    child = subprocess.run(
        [sys.executable, "-c", WATCHED, str(ROOT / script), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return child, seconds_of_children() - began
