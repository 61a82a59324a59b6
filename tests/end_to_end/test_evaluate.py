"""``evaluate.py``: a finished run is scored as the run scored itself."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.runs import train
from support.using_runs import ABLE, SMALL, recorded, scores, use


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    np.save(path, np.random.default_rng(0).normal(size=(11, 32)).astype(np.float32))
    return path


CONFIGURATIONS = {
    "default": (),
    "deep": ("model=transformer", "pos=rope", "model.n_layers=3", "optimizer=adamw", "optimizer.warmup_steps=2"),
    "tied": ("model.tie_embeddings=true", "pos=sinusoidal"),
    "hashed": ("model.token_init=hashed", "pos=alibi", "model.vocab_size=40", "model.dropout=0.3"),
    "longer": ("pos.train_offset=random", "model.max_context_length=30", "task.min_length=1", "task.eos=true"),
    "bf16": ("trainer.precision=bf16", "pos=t5", "model=transformer"),
    "repeat": ("task=repeat", "pos=fire", "task.seq_len=5"),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_scores_are_exactly_those_of_the_run(
    name: str, finished_runs: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [one for one in SMALL if name != "repeat" or not one.startswith("task.length")]
    run = finished_runs(*CONFIGURATIONS[name], *small)
    moved = tmp_path / "another place" / "Läufe, it's $HOME"
    shutil.copytree(run, moved)
    found = scores(moved, tmp_path)
    expected = {key: value for key, value in recorded(run).items() if key.startswith("val/")}
    assert found["metrics"] == expected
    assert (found["step"], found["seed"], found["examples"]) == (8, 0, 50)
    assert f"{expected['val/loss']:.4f}" in capsys.readouterr().out


def test_a_set_whose_size_was_not_given_is_scored_again(
    finished_runs: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_runs(*SMALL, "data.val_examples=null")
    found = scores(run, tmp_path)
    assert found["examples"] == 512
    assert found["metrics"]["val/loss"] == recorded(run)["val/loss"]
    assert "examples  512 a row" in capsys.readouterr().out


def test_a_token_file_is_not_needed_any_more(token_file: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", *SMALL, "model.token_init=file", f"model.token_file={token_file}")
    token_file.unlink()
    assert scores(run, tmp_path)["metrics"]["val/loss"] == recorded(run)["val/loss"]


def test_best_and_last_are_two_checkpoints(finished_runs: Callable[..., Path], tmp_path: Path) -> None:
    run = finished_runs(*SMALL, "optimizer.lr=0.1", "trainer.max_epochs=4")
    with open(run / "metrics.csv", newline="", encoding="utf-8") as file:
        losses = {int(row["step"]): float(row["val/loss"]) for row in csv.DictReader(file) if row["val/loss"]}
    best, last = scores(run, tmp_path, "checkpoint=best"), scores(run, tmp_path, "checkpoint=last")
    assert best["step"] < last["step"] == 16
    assert best["metrics"]["val/loss"] == losses[best["step"]] == min(losses[step] for step in (4, 8, 12, 16))
    assert last["metrics"]["val/loss"] == losses[16]
    given = scores(run, tmp_path, f"checkpoint={run / 'checkpoints' / 'best.ckpt'}")
    assert given == best


def test_other_examples_and_other_lengths(
    finished_runs: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_runs(*ABLE)
    assert recorded(run)["val/exact_match"] == 1
    own, fresh = scores(run, tmp_path), scores(run, tmp_path, "seed=5", "examples=70", "lengths=2,3,4")
    assert fresh["examples"] == 70
    assert fresh["seed"] == 5
    assert fresh["metrics"]["val/loss"] != own["metrics"]["val/loss"]
    assert fresh["metrics"]["length/3/exact_match"] == fresh["metrics"]["val/exact_match"] == 1
    assert fresh["metrics"]["length/2/exact_match"] < 1
    assert "length/4/accuracy" not in fresh["metrics"]
    reason = fresh["out_of_reach"]["4"]
    assert "has 6 positions and cannot place 8 tokens" in reason
    assert reason in capsys.readouterr().out


def test_sizes_in_a_stored_configuration_are_checked_before_examples_are_made(
    finished_runs: Callable[..., Path], tmp_path: Path
) -> None:
    run = shutil.copytree(finished_runs(*ABLE), tmp_path / "run")
    file = run / "config.yaml"
    before = file.read_text(encoding="utf-8")
    file.write_text(before.replace("val_examples: 50", "val_examples: 1000000000000"), encoding="utf-8")
    said = use("evaluate.py", tmp_path, "run=run")
    assert said.startswith("error: the validation set would take at least ")
    assert "data.val_examples=1000000000000" in said
    wrong = "diagnostics:\n  lengths:\n    _target_: poslab.diagnostics.lengths.Lengths\n    n_examples: many\n"
    file.write_text(before.replace("diagnostics: {}\n", wrong), encoding="utf-8")
    said = use("evaluate.py", tmp_path, "run=run", "lengths=2")
    assert said.startswith("error: diagnostics.lengths.n_examples=many of run is not usable; give examples=")


@pytest.mark.parametrize("name", ["result.json", "config.yaml", "checkpoints/last.ckpt", "link", "metrics.csv"])
def test_the_output_replaces_no_file_of_a_run(name: str, finished_runs: Callable[..., Path], tmp_path: Path) -> None:
    run = shutil.copytree(finished_runs(*ABLE), tmp_path / "run")
    (run / "link").symlink_to("result.json")
    (run / "metrics.csv").unlink()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    said = use("evaluate.py", tmp_path, "run=run", f"output=run/{name}")
    assert said == f"error: output=run/{name} is a file of {run}; give another file"
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_the_output_of_before_is_replaced_also_beside_a_run(finished_runs: Callable[..., Path], tmp_path: Path) -> None:
    shutil.copytree(finished_runs(*ABLE), tmp_path / "run")
    for seed in ("1", "2"):
        assert use("evaluate.py", tmp_path, "run=run", f"seed={seed}", "output=run/scores.json") is None
    assert '"seed": 2' in (tmp_path / "run/scores.json").read_text(encoding="utf-8")
