"""Which token rows a step teaches."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch

from poslab.build import build_task
from poslab.config.schema import checked
from poslab.data.stream import BatchStream
from poslab.diagnostics.embedding_gradient import EmbeddingGradient
from support.configs import compose
from support.runs import SMALL, train


def test_gradient_rows_are_exactly_the_tokens_of_the_step(tmp_path: Path, ordered: list[Any]) -> None:
    train(tmp_path / "run", *SMALL, "diagnostics=[embedding_gradient]", "seed=5")
    task = build_task(checked(compose()))
    stream = BatchStream(task, 5, "train", 4, task.vocab_size)
    drawn = [(step, *make.args) for _, step, make in ordered]
    assert [step for step, *_ in drawn] == [0, 3, 6, 9]
    assert "no step has been taken" in drawn[0][1]
    for look, norms, step in drawn[1:]:
        # The newest gradient that was seen: of the update before this look.
        assert step == look - 1
        assert np.flatnonzero(norms).tolist() == torch.unique(stream.batch(step).tokens).tolist()
        assert np.isfinite(norms).all()


def test_gradient_is_looked_at_on_the_logging_interval_only(tmp_path: Path) -> None:
    folder = train(
        tmp_path / "run", *SMALL, "trainer.log_every_n_steps=2", "diagnostics=[embedding_gradient]", "logger=none"
    )
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        seen = [int(row["step"]) for row in csv.DictReader(file) if row["embedding_gradient/rows"]]
    assert seen == [0, 2, 4, 6, 8]
    assert EmbeddingGradient().every == 1
