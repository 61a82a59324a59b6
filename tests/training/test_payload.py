"""Checkpoints of format 1, made by version 0.1.0 before a single model and several seeds had one layout."""

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from poslab.trained import load
from poslab.training.payload import translate
from support.runs import read_json, train

OLD = Path(__file__).with_name("format1")
# Both were stopped after 9 updates, in the second epoch of six.
SETTINGS = (
    *("data.batch_size=4", "data.steps_per_epoch=6", "data.val_examples=10", "trainer.max_epochs=3"),
    *("trainer.log_every_n_steps=1", "trainer.threads=1", "model.d_model=8", "model.n_heads=2", "task.n_symbols=8"),
    *("optimizer.warmup_steps=4", "optimizer.decay=cosine", "trainer.gradient_clip_norm=0.2", "logger=none"),
    *("diagnostics=[neighbour_similarity]", "trainer=cpu"),
)
OWN = {
    "single": ("pos=sinusoidal", "model.dropout=0.1"),
    "bundle": ("pos.train_offset=random", "model.max_context_length=20", "seeds=2"),
}


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def stored(name: str) -> dict[str, Any]:
    return torch.load(OLD / name / "checkpoints/last.ckpt", weights_only=True)


@pytest.mark.parametrize("name", OWN)
def test_a_run_stopped_within_an_epoch_resumes_as_if_it_had_not_been_stopped(name: str, tmp_path: Path) -> None:
    assert stored(name)["global_step"] == 9
    folder = Path(shutil.copytree(OLD / name, tmp_path / "run"))
    train(folder, *SETTINGS, *OWN[name], "resume=auto")
    found, wanted = rows(folder / "metrics.csv"), rows(OLD / name / "whole.csv")
    assert [row["step"] for row in found] == [row["step"] for row in wanted]
    for row, other in zip(found, wanted, strict=True):
        # At the end, the present version also scores the best weights on a test set.
        added = {"test/loss", "test/accuracy", "test/exact_match"} if row["step"] == "18" else set()
        assert {key for key in row if row[key]} == {key for key in other if other[key]} | added
        for key in (key for key in other if other[key]):
            assert float(row[key]) == pytest.approx(float(other[key]), rel=2e-5, abs=1e-7), (row["step"], key)

    replica = folder if name == "single" else folder / "copies/seed1"
    validation = read_json(replica / "result.json")["validation"]
    assert (validation["rows"], validation["seen_in_training"]) == (10, 0), "of the batches before the resume as well"


@pytest.mark.parametrize("path", ["single", "bundle/copies/seed1"])
def test_a_model_loads(path: str) -> None:
    model = load(OLD / path).model
    weights = torch.load(OLD / path / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert {f"model.{name}" for name in model.state_dict()} == set(weights)


def test_the_updates_of_automatic_optimisation_become_those_of_the_step(tmp_path: Path) -> None:
    checkpoint = stored("single")
    fit = checkpoint["loops"]["fit_loop"]
    assert fit["epoch_loop.manual_optimization.optim_step_progress"]["total"]["completed"] == 0
    translate(checkpoint)
    assert fit["epoch_loop.manual_optimization.optim_step_progress"]["total"]["completed"] == 9
    # (ranks, steps, replicas): three updates of the second epoch.
    assert checkpoint["poslab"]["epoch_losses"].shape == (1, 3, 1)
    translated = {key: str(value) for key, value in checkpoint.items()}
    translate(checkpoint)
    assert {key: str(value) for key, value in checkpoint.items()} == translated


def test_replicas_keep_their_order_and_their_random_states() -> None:
    before, after = stored("bundle"), stored("bundle")
    translate(after)
    assert [name.replace("stack.", "model.", 1) for name in before["state_dict"]] == [*after["state_dict"]]
    for one, two in zip(before["poslab"]["copies"], after["poslab"]["replicas"], strict=True):
        assert torch.equal(one["random_state"], two["random_state"])
    assert after["poslab"]["epoch_losses"].shape == (1, 3, 2)
