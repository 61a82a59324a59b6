"""Short runs of several replicas, each compared with the run that it would have been alone."""

import csv
from pathlib import Path

import pytest
import torch
from torch import Tensor

from poslab.training import stack as stack_module
from poslab.training.stack import losses

TINY = ("data.batch_size=4", "data.steps_per_epoch=6", "data.val_examples=10", "trainer.max_epochs=2")


QUIET = ("diagnostics=none", "logger=none", "trainer.log_every_n_steps=1")


RANDOM_ROWS = ("model.max_context_length=30", "task.min_length=2")


DECAYED = ("optimizer=adamw", "optimizer.weight_decay=0.1", "trainer.gradient_clip_norm=0.2")


def rows_of(table: Path) -> list[dict[str, str]]:
    with open(table, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def rows(folder: Path) -> list[dict[str, float]]:
    return [{name: float(value) for name, value in row.items() if value} for row in rows_of(folder / "metrics.csv")]


def weights(folder: Path, name: str = "last") -> dict[str, Tensor]:
    return torch.load(folder / f"checkpoints/{name}.ckpt", weights_only=True)["state_dict"]


def lose(monkeypatch: pytest.MonkeyPatch, copies: tuple[int, ...], update: int) -> None:
    """These copies' losses become NaN in the given update (from 0), and their gradients with them."""
    calls = iter(range(10**6))

    def faulty(logits: Tensor, targets: Tensor) -> Tensor:
        by_copy = losses(logits, targets)
        factors = torch.ones(len(by_copy))
        if next(calls) >= update:
            factors[list(copies)] = float("nan")
        return by_copy * factors

    monkeypatch.setattr(stack_module, "losses", faulty)
