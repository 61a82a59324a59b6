"""Runs trained in this process, and what they leave behind."""

import csv
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from poslab.experiment.run import run
from support.configs import compose


def train(folder: Path, *overrides: str) -> Path:
    """Train in this process; returns the folder."""

    run(compose(*overrides), folder, overrides)
    return folder


SMALL = (
    "trainer=cpu",
    "data.steps_per_epoch=3",
    "data.val_examples=8",
    "data.batch_size=4",
    "trainer.log_every_n_steps=1",
)


def status(folder: Path) -> str:
    return str(json.loads((folder / "result.json").read_text())["status"])


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the run warned of on the console."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("poslab")
    ]


def numbers(folder: Path, *but: str) -> list[dict[str, str]]:
    """The rows of ``metrics.csv`` without the columns of these groups."""
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        return [
            {name: value for name, value in row.items() if not name.startswith(but)} for row in csv.DictReader(file)
        ]


TIED = (*SMALL, "model.tie_embeddings=true", "diagnostics=[parameters,embedding_gradient]")


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))
