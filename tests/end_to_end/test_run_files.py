"""What a finished run leaves behind: complete, portable and readable."""

import contextlib
import csv
import io
import math
import re
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from poslab.build import build_model, build_task
from poslab.config.schema import checked
from poslab.data.module import SeedData
from poslab.evaluation.metrics import score
from poslab.system.lock import LOCK_FILE
from support.commands import typed
from support.configs import compose
from support.runs import read_json

HOSTILE = "a = b, c: d's {x}.npy"


class Typed:
    """A run started the way a person does, with values that are hard on names and quoting."""

    def __init__(self, cwd: Path) -> None:
        rows = np.random.default_rng(0).normal(size=(65, 32)).astype(np.float32)
        np.save(cwd / HOSTILE, rows)
        # Two backslashes: Hydra's grammar takes one of them.
        value = str(cwd / HOSTILE).replace("'", "\\'")
        self.typed = ["model.token_init=file", f"model.token_file='{value}'", "pos=sinusoidal", "trainer.max_epochs=2"]
        self.typed += ["data.steps_per_epoch=30", "data.val_examples=100", "seed=12"]
        console = io.StringIO()
        with contextlib.redirect_stdout(console):
            assert typed(cwd, *self.typed) is None
        self.console = console.getvalue()
        (self.folder,) = (cwd / "outputs" / "runs").iterdir()
        self.rows = rows
        self.token_file = str(cwd / HOSTILE)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Typed:
    return Typed(tmp_path_factory.mktemp("hostile"))


def test_every_file_is_there_and_nothing_else(made: Typed):
    names = {path.name for path in made.folder.iterdir()}
    (events,) = [name for name in names if name.startswith("events.out.tfevents.")]
    assert names - {events, LOCK_FILE} == {
        "config.yaml",
        "result.json",
        "metrics.csv",
        "checkpoints",
        "figures",
        "train.log",
    }
    assert {path.name for path in (made.folder / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}


def test_names_are_portable_and_short_whatever_was_typed(made: Typed):
    root = made.folder.parents[2]
    for path in (root / "outputs").rglob("*"):
        assert re.fullmatch(r"[A-Za-z0-9._-]+", path.name), path.name
        assert len(path.relative_to(root).as_posix()) < 150
    assert made.folder.name.startswith("copy-sinusoidal-d32-h4-s12_")


def test_the_whole_configuration_is_kept(made: Typed):
    kept = yaml.safe_load((made.folder / "config.yaml").read_text(encoding="utf-8"))
    kept.pop("defaults")
    assert kept == asdict(checked(compose(*made.typed)))
    assert kept["model"]["token_file"] == made.token_file
    assert kept["seed"] == 12


def test_the_result_says_how_it_ended(made: Typed):
    found = read_json(made.folder / "result.json")
    assert found.keys() >= {
        "status",
        "error",
        "metrics",
        "parameters",
        "overrides",
        "seed",
        "wall_seconds",
        "device",
        "versions",
    }
    assert (found["status"], found["error"]) == ("completed", None)
    assert (found["seed"], found["overrides"]) == (12, made.typed)
    assert 0 < found["wall_seconds"] < 120
    assert found["device"] == ("cpu" if not torch.cuda.is_available() else f"{torch.cuda.get_device_name(0)} (GPU 0)")
    assert found["versions"].keys() >= {"python", "torch", "lightning", "poslab"}
    assert found["versions"]["torch"] == version("torch")
    # A build for CUDA is 2.13.0 to pip and 2.13.0+cu130 to itself.
    assert found["versions"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert all(isinstance(value, float) and math.isfinite(value) for value in found["metrics"].values())


def test_the_parameters_are_counted_by_part(finished_runs: Callable[..., Path]):
    counts = read_json(finished_runs() / "result.json")["parameters"]
    # V D; L D; 4 D^2 + 4 D; D V + V
    parts = {"token_embedding": 65 * 32, "position": 12 * 32, "attention": 4 * 32**2 + 4 * 32, "head": 65 * 32 + 65}
    assert counts == {"total": sum(parts.values()), **parts}


def test_the_table_holds_every_scalar_by_step(made: Typed):
    with open(made.folder / "metrics.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    steps = [int(row["step"]) for row in rows]
    assert steps == sorted(set(steps)) == [0, 10, 20, 30, 40, 50, 59, 60]
    assert rows[0].keys() >= {
        *("train/loss", "val/loss", "val/accuracy", "val/exact_match", "learning_rate"),
        *(f"parameters/{part}" for part in ("total", "token_embedding", "position", "attention", "head")),
        *(f"neighbour_similarity/offset_{k}" for k in range(1, 9)),
    }
    last: dict[str, float] = {}
    for row in rows:
        last |= {name: float(value) for name, value in row.items() if value and name != "step"}
    metrics = read_json(made.folder / "result.json")["metrics"]
    assert {name: metrics[name] for name in last} == last
    validation = [float(row["val/loss"]) for row in rows if row["val/loss"]]
    assert len(validation) == 3
    assert (metrics["start/val/loss"], metrics["best/val/loss"]) == (validation[0], min(validation))
    assert metrics["start/train/loss"] == float(rows[0]["train/loss"])


def plain(value: Any) -> bool:
    """Whether a checkpoint's content is numbers, texts, tensors and containers of them."""
    if isinstance(value, dict):
        return all(plain(one) for pair in value.items() for one in pair)
    if isinstance(value, (list, tuple)):
        return all(plain(one) for one in value)
    return value is None or isinstance(value, (bool, int, float, str, torch.Tensor))


@pytest.mark.parametrize("name", ["best", "last"])
def test_checkpoints_hold_plain_values(name: str, finished_runs: Callable[..., Path]):
    content = torch.load(finished_runs() / "checkpoints" / f"{name}.ckpt", weights_only=True)
    assert plain(content)
    assert content["global_step"] in (120, 240, 360)
    # No configuration and no network inside what is loaded by name.
    assert not content.get("hyper_parameters")


@pytest.mark.parametrize(("name", "metric"), [("best", "best/val/loss"), ("last", "val/loss")])
def test_a_checkpoint_is_the_model_whose_numbers_were_reported(
    name: str, metric: str, finished_runs: Callable[..., Path]
):
    folder = finished_runs()
    job = checked(compose())
    task = build_task(job)
    model = build_model(job, task)
    content = torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)
    model.load_state_dict({key.removeprefix("model."): value for key, value in content["state_dict"].items()})
    with torch.no_grad():
        parts = [score(model(tokens), targets) for tokens, targets in SeedData(task, job.data, 0, 65).validation]
    loss = float(sum(part.loss_sum for part in parts) / sum(part.tokens for part in parts))
    assert loss == pytest.approx(read_json(folder / "result.json")["metrics"][metric], rel=1e-4)


def test_a_token_table_from_a_file_was_read(made: Typed):
    # Only rows that were read can have moved, and in 60 steps none is far from where it began.
    content = torch.load(made.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    table = content["model.embeddings.token_embedding.embedding.weight"]
    assert float((table - torch.from_numpy(made.rows)).abs().max()) < 0.5


def test_one_event_stream(made: Typed, finished_runs: Callable[..., Path]):
    for folder in (made.folder, finished_runs()):
        (events,) = folder.rglob("events.out.tfevents.*")
        assert events.parent == folder


def test_the_log_holds_what_the_console_said(made: Typed):
    log = (made.folder / "train.log").read_text(encoding="utf-8")
    said = made.console.splitlines()
    assert len(said) > 10
    assert [line for line in said if not any(written.endswith(line) for written in log.splitlines())] == []
    dated = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+"
    assert re.match(rf"{dated} DEBUG start  copy, .*\n{dated} INFO run ", log)
    assert "run completed" in log
    assert f"tensorboard --logdir {made.folder.relative_to(made.folder.parents[2])}" in log
