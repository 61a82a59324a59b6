"""Short runs of one model, and what they leave in ``metrics.csv`` and their checkpoints."""

import csv
import json
from pathlib import Path

import torch

from poslab.build import build_task
from poslab.config.schema import TrainConfig
from poslab.runs.folder import RunFolder
from poslab.runs.table import MetricsTable
from poslab.training.learners import build_learner
from poslab.training.module import TrainingModule
from poslab.training.replicas import Replica, Replicas

SMALL = ("data.steps_per_epoch=20", "data.val_examples=50", "data.val_batch_size=32", "trainer.max_epochs=2")


QUIET = ("diagnostics=none", "logger=none")


def columns(folder: Path) -> dict[str, dict[int, float]]:
    """metrics.csv as column -> step -> value."""
    found: dict[str, dict[int, float]] = {}
    with open(folder / "metrics.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if name != "step" and value:
                    found.setdefault(name, {})[int(row["step"])] = float(value)
    return found


def result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def checkpoint(folder: Path, name: str) -> dict:
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)


def weights(folder: Path, name: str = "last") -> dict[str, torch.Tensor]:
    return {key.removeprefix("model."): value for key, value in checkpoint(folder, name)["state_dict"].items()}


def a_module(job: TrainConfig, folder: Path) -> TrainingModule:
    only = Replica(job=job, overrides=[], folder=RunFolder(folder), table=MetricsTable(folder), board=None)
    return TrainingModule(build_learner(job, build_task(job)), Replicas([only], only), job.optimizer, 10)
