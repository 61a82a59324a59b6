"""Loss curves that were stored once: whoever makes training faster leaves every number where it was.

Each file in ``tests/training/golden/`` holds what was typed, and the numbers that a run of 40 steps then logged.
Another torch, BLAS or processor may round otherwise in the last bits, and Adam makes more of them with every step:
without any vector instructions the numbers move by 4e-7, in bf16 by 3e-4. The tolerances leave room for that over so
few steps, and for nothing else: a seed, a start or a loss that is off by a little is far outside.

Remake them on purpose only, when a change is meant to change what is computed, and say so in the commit:

    PYTHONPATH=tests python -m support.golden all    # or the names of some
"""

import csv
import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from support.paths import ROOT
from support.runs import train

GOLDEN = ROOT / "tests/training/golden"

NAMES = sorted(path.stem for path in GOLDEN.glob("*.json"))


SHORT = (
    "data.steps_per_epoch=20",
    "trainer.max_epochs=2",
    "trainer.log_every_n_steps=4",
    "data.val_examples=64",
    "trainer.threads=1",
    "diagnostics=none",
    "logger=none",
)


COLUMNS = ("train/loss", "train/loss_epoch", "train/gradient_norm", "val/loss", "val/accuracy")


def curves(folder: Path) -> dict[str, dict[str, float]]:
    """The columns of ``metrics.csv`` as name to step to value."""
    with open(folder / "metrics.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: {row["step"]: float(row[name]) for row in rows if row[name]} for name in COLUMNS}


def stored(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def assert_as_stored(name: str, folder: Path) -> None:
    golden = stored(name)
    found = curves(train(folder, *SHORT, *golden["overrides"]))
    assert found.keys() == golden["curves"].keys()
    for column, curve in golden["curves"].items():
        # One token more or less is right where two logits are all but equal.
        close = {"abs": 0.004} if column == "val/accuracy" else {"rel": golden["tolerance"]}
        assert found[column] == pytest.approx(curve, **close), column


def remake(name: str) -> None:
    golden = stored(name)
    with tempfile.TemporaryDirectory() as folder:
        found = curves(train(Path(folder), *SHORT, *golden["overrides"]))
    golden["made_with"] = f"torch {torch.__version__}, {platform.system()} {platform.machine()}"
    golden["curves"] = {
        column: {step: float(f"{value:.8g}") for step, value in curve.items()} for column, curve in found.items()
    }
    # One line a curve.
    text = json.dumps(golden, indent=1)
    for curve in golden["curves"].values():
        text = text.replace(json.dumps(curve, indent=1).replace("\n", "\n  "), json.dumps(curve))
    (GOLDEN / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(f"name the curves to remake, or all: {', '.join(NAMES)}")
    for each in NAMES if sys.argv[1:] == ["all"] else sys.argv[1:]:
        remake(each)
