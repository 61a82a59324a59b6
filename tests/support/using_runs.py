"""Runs ``evaluate.py`` and ``generate.py`` in this process, and reads what they write."""

import contextlib
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT

SMALL = (
    *("task.n_symbols=10", "task.length=3", "data.steps_per_epoch=4", "trainer.max_epochs=2", "data.val_examples=50"),
    *("diagnostics=none", "logger=none", "trainer=cpu", "data.val_batch_size=16"),
)


# Enough for the copy, in a second.
ABLE = (*SMALL, "data.steps_per_epoch=150", "data.batch_size=32", "optimizer.lr=0.01")


def use(script: str, folder: Path, *arguments: str) -> Any:
    """``python SCRIPT`` with these arguments in ``folder``, in this process: what it gives `sys.exit`, or None."""
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        patch.setattr(sys, "argv", [script, *arguments])
        patch.setenv("HYDRA_FULL_ERROR", "0")  # the program sets it: put it back afterwards
        try:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as end:
            return end.code
    return None


def scores(run: Path, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """What ``evaluate.py`` leaves in its file."""
    assert use("evaluate.py", tmp_path, f"run={run}", *arguments, "output=found.json") is None
    return json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))


def recorded(run: Path) -> dict[str, float]:
    return json.loads((run / "result.json").read_text(encoding="utf-8"))["metrics"]


def lines_of(text: str) -> dict[str, str]:
    """The lines of ``generate.py`` by their first word."""
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in text.splitlines()}
