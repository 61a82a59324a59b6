"""Loss curves that were stored once: whoever makes training faster leaves every number where it was.

Each file in ``golden/`` holds what was typed, and the numbers that a run of 40 steps then logged. Another torch, BLAS
or processor may round otherwise in the last bits, and Adam makes more of them with every step: without any vector
instructions the numbers move by 4e-7, in bf16 by 3e-4. The tolerances leave room for that over so few steps, and for
nothing else: a seed, a start or a loss that is off by a little is far outside.

Remake them on purpose only, when a change is meant to change what is computed, and say so in the commit:

    python tests/test_golden.py all          # or the names of some
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
import torch.nn.functional as F
from conftest import train

import poslab.training.learner
import poslab.training.module
from poslab.model import embeddings

GOLDEN = Path(__file__).parent / "golden"
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


@pytest.mark.parametrize("name", NAMES)
def test_the_curves_are_those_stored(name: str, tmp_path: Path) -> None:
    assert_as_stored(name, tmp_path)


def another_start(monkeypatch: pytest.MonkeyPatch) -> str:
    original = embeddings.TokenEmbedding.__init__

    def wider(self: Any, vocab_size: int, d_model: int, init_std: float = 0.02, *rest: Any) -> None:
        original(self, vocab_size, d_model, init_std * 1.05, *rest)

    monkeypatch.setattr(embeddings.TokenEmbedding, "__init__", wider)
    return "default"


def another_seed(monkeypatch: pytest.MonkeyPatch) -> str:
    original = torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda seed: original(seed + 1))
    return "default"


def a_loss_over_all_tokens(monkeypatch: pytest.MonkeyPatch) -> str:
    def faulty(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.clamp_min(0).flatten())

    monkeypatch.setattr(poslab.training.learner, "token_loss", faulty)
    return "default"


def no_clipping(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(torch.nn.utils, "clip_grads_with_norm_", lambda *_, **__: None)
    return "rope"


def a_schedule_one_step_late(monkeypatch: pytest.MonkeyPatch) -> str:
    original = poslab.training.module.LearningRateFactor.__call__
    monkeypatch.setattr(
        poslab.training.module.LearningRateFactor, "__call__", lambda self, step: original(self, step + 1)
    )
    return "rope"


@pytest.mark.parametrize(
    "fault", [another_start, another_seed, a_loss_over_all_tokens, no_clipping, a_schedule_one_step_late]
)
def test_a_fault_moves_the_curves(fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = fault(monkeypatch)
    with pytest.raises(AssertionError):
        assert_as_stored(name, tmp_path)


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
