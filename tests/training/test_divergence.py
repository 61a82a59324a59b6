"""A run that diverges or fails stops and keeps its best checkpoint."""

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import poslab.training.learner
import poslab.training.module
from poslab.config.schema import checked
from poslab.errors import DivergedError
from poslab.evaluation.metrics import Score, score, token_loss
from support.configs import compose
from support.one_model_runs import QUIET, SMALL, a_module, checkpoint, columns, result, weights
from support.runs import train


def broken_from(step: int, value: float) -> Callable[..., torch.Tensor]:
    """`token_loss`, but from ``step`` on it is ``value``."""
    calls = iter(range(1_000_000))

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return token_loss(logits, targets) if next(calls) < step else logits.sum() * 0 + value

    return loss


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_run_that_diverges_stops_and_keeps_its_best(value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(poslab.training.learner, "token_loss", broken_from(25, value))
    with pytest.raises(DivergedError, match=rf"train/loss is {value} at step 25: .*optimizer\.lr"):
        train(tmp_path, *SMALL, "diagnostics=none")
    found = result(tmp_path)
    assert found["status"] == "diverged"
    assert f"train/loss is {value} at step 25" in found["error"]
    assert all(math.isfinite(number) for number in found["metrics"].values())
    assert found["metrics"]["val/loss"] > 0
    for name in ("best", "last"):
        assert checkpoint(tmp_path, name)["global_step"] == 20
        assert all(torch.isfinite(tensor).all() for tensor in weights(tmp_path, name).values())
    assert set(columns(tmp_path)["val/loss"]) == {0, 20}


def test_a_run_that_diverges_at_once_saves_nothing_as_its_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(poslab.training.learner, "token_loss", broken_from(0, math.nan))
    with pytest.raises(DivergedError, match="step 0"):
        train(tmp_path, *SMALL, *QUIET)
    assert result(tmp_path)["status"] == "diverged"
    assert not list(tmp_path.rglob("*.ckpt"))


def test_a_validation_that_is_no_number_never_becomes_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls = iter(range(100))

    def nan_at_the_third(logits: torch.Tensor, targets: torch.Tensor) -> Score:
        real = score(logits, targets)
        return real._replace(loss_sum=real.loss_sum * math.nan) if next(calls) == 2 else real

    monkeypatch.setattr(poslab.training.learner, "score", nan_at_the_third)
    with pytest.raises(DivergedError, match="val/loss is nan at step 40"):
        train(tmp_path, *SMALL, *QUIET, "data.val_batch_size=50", "trainer.max_epochs=5")
    assert result(tmp_path)["status"] == "diverged"
    assert checkpoint(tmp_path, "best")["global_step"] == 20


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_only_finite_losses_leave_a_replica_active(value: float, tmp_path: Path):
    job = checked(compose(*SMALL))
    module = a_module(job, tmp_path)
    module._trainer = SimpleNamespace(global_step=3)  # type: ignore[assignment]
    module._freeze("val/loss", [1e30])
    assert module.replicas.active() == [0]
    with pytest.raises(DivergedError, match=r"val/loss is .* at step 3"):
        module._freeze("val/loss", [value])


def test_a_failure_in_training_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of\n memory")

    monkeypatch.setattr(poslab.training.learner, "token_loss", fail)
    with pytest.raises(RuntimeError, match="memory"):
        train(tmp_path, *SMALL, "diagnostics=none")
    found = result(tmp_path)
    assert (found["status"], found["error"]) == ("failed", "RuntimeError: out of memory")
    assert found["parameters"]["total"] == 8833
    assert found["metrics"]["start/val/loss"] > 4
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1
