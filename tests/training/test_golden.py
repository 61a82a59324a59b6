"""Training leaves the stored loss curves where they were, and faults move them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import poslab.training.learner
import poslab.training.module
from poslab.model import embeddings
from support.golden import NAMES, assert_as_stored


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
