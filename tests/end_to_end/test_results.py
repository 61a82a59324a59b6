"""What a run leaves behind, however it ends: complete, portable, readable, and never two runs in one folder."""

import contextlib
import csv
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from poslab.build import build_model, build_task
from poslab.config.schema import checked
from poslab.data.module import SeedData
from poslab.errors import ConfigError
from poslab.evaluation.metrics import score
from poslab.runs.folder import RunFolder
from poslab.runs.result import Result
from poslab.system.files import write_atomically
from support.commands import typed
from support.configs import compose
from support.paths import ROOT
from support.runs import train

HOSTILE = "a = b, c: d's {x}.npy"


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


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


# -- the files of a finished run ----------------------------------------------------------------------------------


def test_every_file_is_there_and_nothing_else(made: Typed):
    names = {path.name for path in made.folder.iterdir()}
    (events,) = [name for name in names if name.startswith("events.out.tfevents.")]
    assert names - {events} == {"config.yaml", "result.json", "metrics.csv", "checkpoints", "figures", "train.log"}
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
    assert found["versions"]["torch"] == torch.__version__
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
    assert steps == sorted(set(steps)) == [0, 10, 20, 30, 40, 50, 60]
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
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ INFO run ", log)
    assert "run completed" in log
    assert f"tensorboard --logdir {made.folder.relative_to(made.folder.parents[2])}" in log


# -- one folder, one run ------------------------------------------------------------------------------------------


def test_of_many_that_claim_a_folder_at_once_one_gets_it(tmp_path: Path):
    job = checked(compose())
    barrier = threading.Barrier(8)
    outcomes: list[str] = []

    def claim(number: int) -> None:
        barrier.wait()
        try:
            RunFolder(tmp_path).claim(job, [f"seed={number}"])
        except ConfigError as error:
            outcomes.append(str(error))
        else:
            outcomes.append(f"seed={number}")

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [outcome for outcome in outcomes if outcome.startswith("seed=")]
    assert len(winners) == 1
    assert all(str(tmp_path) in outcome and "another run" in outcome for outcome in outcomes if outcome not in winners)
    assert read_json(tmp_path / "result.json")["overrides"] == winners


def test_a_second_run_leaves_the_first_as_it_was(tmp_path: Path):
    quick = ("trainer.max_steps=1", "data.val_examples=4", "diagnostics=none")
    train(tmp_path, *quick)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="already holds a run"):
        train(tmp_path, *quick, "seed=1")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_two_runs_that_start_together_get_two_folders(tmp_path: Path):
    quick = ("trainer.max_steps=1", "data.val_examples=4", "diagnostics=none", "logger=none")
    for _ in range(2):
        assert typed(tmp_path, *quick) is None
    assert len(list((tmp_path / "outputs" / "runs").iterdir())) == 2


def test_a_folder_that_is_there_and_empty_is_used(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    RunFolder(tmp_path / "mine").check_usable()
    RunFolder(tmp_path / "mine").claim(checked(compose()), [])
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep me"


def test_until_it_ends_a_run_says_that_it_has_not(tmp_path: Path):
    folder = RunFolder(tmp_path)
    folder.claim(checked(compose("seed=4")), ["seed=4"])
    found = read_json(tmp_path / "result.json")
    assert (found["status"], found["seed"], found["overrides"]) == ("interrupted", 4, ["seed=4"])
    folder.finish(Result(status="completed", seed=4))
    assert read_json(tmp_path / "result.json")["status"] == "completed"


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    target = tmp_path / "new" / "result.json"
    write_atomically(target, b"old")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(target, b"new")
    assert [path.name for path in target.parent.iterdir()] == ["result.json"]
    assert target.read_bytes() == b"old"


def test_a_number_that_is_none_never_gets_into_the_result(tmp_path: Path):
    with pytest.raises(ValueError, match="JSON"):
        RunFolder(tmp_path).finish(Result(status="completed", seed=0, metrics={"val/loss": math.nan}))
    assert not (tmp_path / "result.json").exists()


# -- a run that is stopped ----------------------------------------------------------------------------------------

# Ctrl-C must reach the child even where the tests themselves run in the background with SIGINT ignored.
LISTENING = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@contextlib.contextmanager
def training(folder: Path, *overrides: str) -> Iterator[subprocess.Popen[str]]:
    """A child with an epoch and its checkpoints behind it and many to come, in a group of its own as in a terminal."""
    arguments = ["trainer.max_epochs=100000", "data.steps_per_epoch=20", "data.val_examples=16", *overrides]
    child = subprocess.Popen(
        [sys.executable, "-c", LISTENING, str(ROOT / "train.py"), f"hydra.run.dir={folder}", *arguments],
        cwd=folder.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        log = folder / "train.log"
        while not (log.exists() and "epoch  2" in log.read_text(encoding="utf-8")):
            assert child.poll() is None, child.communicate()
            assert time.monotonic() < deadline, "the child did not get to its second epoch"
            time.sleep(0.02)
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("number", "code", "overrides"),
    [(signal.SIGINT, 130, []), (signal.SIGTERM, 143, ["diagnostics=none"])],
    ids=["ctrl-c", "sigterm"],
)
def test_a_run_that_is_stopped_says_so(number: signal.Signals, code: int, overrides: list[str], tmp_path: Path):
    folder = tmp_path / "run"
    with training(folder, *overrides) as child:
        os.killpg(child.pid, number)
        out, err = child.communicate(timeout=60)
    assert child.returncode == code
    assert "Traceback" not in out + err
    found = read_json(folder / "result.json")
    assert found["status"] == "interrupted"
    assert found["error"]
    assert found["metrics"]["val/loss"] > 0
    assert "run interrupted" in out
    for name in ("best", "last"):
        content = torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)
        assert content["global_step"] >= 20
    with open(folder / "metrics.csv", encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) >= 3


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_run_that_is_killed_says_so(tmp_path: Path):
    folder = tmp_path / "run"
    with training(folder, "diagnostics=none") as child:
        child.kill()
        child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL
    found = read_json(folder / "result.json")
    assert found["status"] == "interrupted"
    assert "killed" in found["error"]
    assert torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] >= 20
    # What is still being written has another name, so every file under its own name is whole.
    with open(folder / "metrics.csv", encoding="utf-8", newline="") as file:
        assert all(None not in row.values() for row in csv.DictReader(file))
