"""A process that is stopped or killed while it trains: its exit code and what it leaves."""

import contextlib
import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.paths import ROOT
from support.runs import read_json

# Ctrl-C must reach the child even where the tests themselves run in the background with SIGINT ignored.
LISTENING = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@contextlib.contextmanager
def training(folder: Path, *overrides: str) -> Iterator[subprocess.Popen[str]]:
    """A child with an epoch and its checkpoints behind it and many to come, in a group of its own as in a terminal."""
    arguments = ["trainer.max_epochs=100000", "data.steps_per_epoch=20", "data.val_examples=16", *overrides]
    child = subprocess.Popen(
        [sys.executable, "-c", LISTENING, str(ROOT / "train.py"), f"hydra.run.dir={folder}", *arguments],
        cwd=folder.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        log = folder / "train.log"
        while not (log.exists() and "epoch  2" in log.read_text(encoding="utf-8")):
            assert child.poll() is None, child.communicate()
            assert time.monotonic() < deadline, "the child did not get to its second epoch"
            time.sleep(0.02)
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("number", "code", "overrides"),
    [(signal.SIGINT, 130, []), (signal.SIGTERM, 143, ["diagnostics=none"])],
    ids=["ctrl-c", "sigterm"],
)
def test_a_run_that_is_stopped_says_so(number: signal.Signals, code: int, overrides: list[str], tmp_path: Path):
    folder = tmp_path / "run"
    with training(folder, *overrides) as child:
        os.killpg(child.pid, number)
        out, err = child.communicate(timeout=60)
    assert child.returncode == code
    assert "Traceback" not in out + err
    found = read_json(folder / "result.json")
    assert found["status"] == "interrupted"
    assert found["error"]
    assert found["metrics"]["val/loss"] > 0
    assert "run interrupted" in out
    for name in ("best", "last"):
        content = torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)
        assert content["global_step"] >= 20
    with open(folder / "metrics.csv", encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) >= 3


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_run_that_is_killed_says_so(tmp_path: Path):
    folder = tmp_path / "run"
    with training(folder, "diagnostics=none") as child:
        child.kill()
        child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL
    found = read_json(folder / "result.json")
    assert found["status"] == "interrupted"
    assert "killed" in found["error"]
    assert torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] >= 20
    # What is still being written has another name, so every file under its own name is whole.
    with open(folder / "metrics.csv", encoding="utf-8", newline="") as file:
        assert all(None not in row.values() for row in csv.DictReader(file))
