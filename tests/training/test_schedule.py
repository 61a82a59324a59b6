"""The learning rate by hand, the named algorithm, and clipping."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import poslab.training.learner
import poslab.training.module
from poslab.config.schema import checked
from poslab.training.schedule import LearningRateFactor
from support.configs import compose
from support.one_model_runs import QUIET, SMALL, a_module, columns
from support.runs import train


@pytest.mark.parametrize(
    ("warmup", "decay", "total", "wanted"),
    [
        (0, "none", 4, [1, 1, 1, 1, 1, 1]),
        (3, "none", 4, [1 / 4, 2 / 4, 3 / 4, 1, 1, 1]),
        (0, "linear", 4, [1, 3 / 4, 2 / 4, 1 / 4, 0, 0]),
        (2, "linear", 6, [1 / 3, 2 / 3, 1, 3 / 4, 2 / 4, 1 / 4, 0, 0]),
        (0, "cosine", 2, [1, 1 / 2, 0, 0]),
        (1, "cosine", 5, [1 / 2, 1, (1 + math.sqrt(0.5)) / 2, 1 / 2, (1 - math.sqrt(0.5)) / 2, 0]),
        (5, "linear", 3, [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1]),
    ],
)
def test_the_rate_by_hand(warmup: int, decay: str, total: int, wanted: list[float]):
    factor = LearningRateFactor(warmup, decay, total)
    assert [factor(step) for step in range(len(wanted))] == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_the_named_algorithm_is_used_with_its_values(name: str, kind: type, tmp_path: Path):
    job = checked(compose(f"optimizer={name}", "optimizer.lr=0.3", "optimizer.betas=[0.1,0.2]"))
    module = a_module(job, tmp_path)
    optimizer = module.configure_optimizers()
    assert type(optimizer) is kind  # in torch an AdamW is an Adam
    groups = optimizer.param_groups
    assert [(group["lr"], group["betas"]) for group in groups] == [(0.3, (0.1, 0.2))] * len(groups)
    assert groups[0]["weight_decay"] == job.optimizer.weight_decay == {"adam": 0.0, "adamw": 0.01}[name]
    assert {id(p) for group in groups for p in group["params"]} == {id(p) for p in module.model.parameters()}


@pytest.mark.parametrize(("clip", "largest"), [("0.01", 0.01), ("null", None)])
def test_gradients_are_clipped_where_asked(
    clip: str, largest: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    norms = []

    class Watched(torch.optim.Adam):
        def step(self, closure: Callable) -> float:
            loss = super().step(closure)
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in self.param_groups[0]["params"]]).item())
            return loss

    monkeypatch.setitem(poslab.training.module.ALGORITHMS, "adam", Watched)
    train(tmp_path, *SMALL, *QUIET, f"trainer.gradient_clip_norm={clip}", "trainer.max_steps=5")
    assert len(norms) == 5
    if largest is None:
        assert min(norms) > 0.05
    else:
        assert norms == pytest.approx([largest] * 5, rel=1e-3)
        # The norm that is logged is the one before clipping: it tells how much was cut.
        assert columns(tmp_path)["train/gradient_norm"][0] > 0.05
