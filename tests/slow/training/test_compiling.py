"""``compile=true`` in child processes: the same run, before and after a stop."""

import csv
import os
import shutil
from pathlib import Path

import pytest
import torch

from poslab.runs.result import stored_result
from poslab.trained import load
from support.child_patches import WHEN_IT_TRAINS
from support.commands import start
from support.runs import train

SHORT = (
    "data.steps_per_epoch=12",
    "data.val_examples=40",
    "trainer.max_epochs=2",
    "trainer.log_every_n_steps=1",
    "model.d_model=16",
    "diagnostics=[heads,parameters]",
)


RANDOM = ("model=transformer", "model.max_context_length=20", "pos.train_offset=random", "model.dropout=0.1", *SHORT)


JOBS = {
    # Both draw at random in training, in what is compiled and before it.
    "one model": RANDOM,
    "lengths and schedule": ("task.min_length=2", "pos=t5", "optimizer.decay=linear", *SHORT),
    "copies": ("seeds=3", "task.min_length=2", "pos.train_positions=random", *SHORT, "model.max_context_length=20"),
}


STOPS = """
def patch(module):
    real, calls = module.TrainingModule.training_step, iter(range(15))

    def training_step(*arguments):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return real(*arguments)

    module.TrainingModule.training_step = training_step
"""


def rows(folder: Path) -> list[dict[str, float]]:
    with open(folder / "metrics.csv", encoding="utf-8", newline="") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def compiled_run(folder: Path, *overrides: str, code: int = 0, **environment: str) -> str:
    """In a process of its own: the shape checks of the tests are no part of what is compiled. Returns what it said."""
    typed = (f"hydra.run.dir={folder}", "compile=true", *overrides)
    ended = start(*typed, cwd=folder.parent, TORCH_LOGS="recompiles", **environment)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def assert_same_numbers(folder: Path, other: Path) -> None:
    found, wanted = rows(folder), rows(other)
    assert [list(row) for row in found] == [list(row) for row in wanted]
    for one, two in zip(found, wanted, strict=True):
        assert one == pytest.approx(two, rel=2e-4, abs=2e-5)


@pytest.mark.parametrize("job", JOBS)
def test_a_compiled_run_is_the_same_run(tmp_path: Path, job: str) -> None:
    plain = train(tmp_path / "plain", *JOBS[job])
    said = compiled_run(tmp_path / "compiled", *JOBS[job])
    # Once for the first length, or the first row that is drawn to start at, and once more for all the others; not for
    # each. Copies are padded to one length, and what is drawn for them is drawn before.
    assert said.count("Recompiling function") == (job != "copies"), said
    assert_same_numbers(tmp_path / "compiled", plain)
    copy = "copies/seed2" if job == "copies" else "."
    assert_same_numbers(tmp_path / "compiled" / copy, plain / copy)
    names = [
        list(torch.load(run / copy / "checkpoints/last.ckpt", weights_only=True)["state_dict"])
        for run in (plain, tmp_path / "compiled")
    ]
    assert names[0] == names[1]
    load(tmp_path / "compiled" / copy)
    assert (tmp_path / "compiled" / ("copies/seed0" if job == "copies" else ".") / "figures/heads_layer_0.png").exists()


def test_a_compiled_run_goes_on(tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", *RANDOM)
    (tmp_path / "sitecustomize.py").write_text(STOPS + WHEN_IT_TRAINS.replace("training.learner", "training.module"))
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    compiled_run(tmp_path / "stopped", *RANDOM, code=130, PYTHONPATH=path)
    assert stored_result(tmp_path / "stopped")["status"] == "interrupted"
    shutil.copytree(tmp_path / "stopped", tmp_path / "plainly")
    compiled_run(tmp_path / "stopped", *RANDOM, "resume=auto")
    assert_same_numbers(tmp_path / "stopped", plain)
    # How fast a run goes may change on the way.
    train(tmp_path / "plainly", *RANDOM, "resume=auto")
    assert_same_numbers(tmp_path / "plainly", plain)
