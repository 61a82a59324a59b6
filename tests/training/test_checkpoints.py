"""Checkpoints within an epoch: whatever step a run goes on from, it ends as if nothing had happened."""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning
import pytest

from poslab.runs.result import stored_result, stored_status
from poslab.system.files import write_atomically
from poslab.training import checkpoints
from poslab.training.checkpoints import Checkpoints
from support.runs import train
from support.stopping import TINY, Wholes, assert_same, content, told_to_stop

VARIANTS = {
    "dropout and schedule": ("model.dropout=0.1", "optimizer.decay=cosine", "optimizer.warmup_steps=4"),
    "data workers": ("data.num_workers=2",),
    "lengths and steps": ("task.min_length=2", "trainer.max_steps=20", "trainer.gradient_clip_norm=0.5"),
    "random offset": ("pos.train_offset=random", "model.max_context_length=30"),
    "bundle": ("seeds=3", "task.min_length=2"),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("update", [5, 17])
def test_a_run_goes_on_within_an_epoch_as_if_nothing_had_happened(
    variant: str, update: int, whole: Wholes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = VARIANTS[variant]
    stopped = told_to_stop(tmp_path / "run", update, monkeypatch, *overrides)
    assert stopped.code == 143
    assert content(tmp_path / "run")["global_step"] == update, "the step that was going on is not lost"
    train(tmp_path / "run", *TINY, *overrides, "resume=auto")
    assert_same(tmp_path / "run", whole(*overrides))


@pytest.mark.parametrize("update", [12, 24])
def test_a_signal_in_the_last_step_of_an_epoch_waits_for_its_validation(
    update: int, whole: Wholes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if update == 24:
        # The last step of all: nothing is left to stop.
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            told_to_stop(tmp_path / "run", update, monkeypatch)
    else:
        told_to_stop(tmp_path / "run", update, monkeypatch)
        assert "val/loss" in stored_result(tmp_path / "run")["metrics"]
        assert content(tmp_path / "run")["global_step"] == 12
        train(tmp_path / "run", *TINY, "resume=auto")
    assert_same(tmp_path / "run", whole())


def test_stopped_at_every_other_step(whole: Wholes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    for _ in range(30):
        try:
            told_to_stop(tmp_path / "run", 3, monkeypatch, "resume=auto", "model.dropout=0.1")
        except pytest.fail.Exception:
            break
        steps.append(content(tmp_path / "run")["global_step"])
    assert steps == sorted(set(steps))
    assert len(steps) >= 7
    assert_same(tmp_path / "run", whole("model.dropout=0.1"))


# -- when and how it is written -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "steps"),
    [
        ("trainer.checkpoint_every_n_steps=5", [5, 10, 12, 15, 20, 24]),
        # The last step of an epoch is saved with its validation, and only then.
        ("trainer.checkpoint_every_n_steps=12", [12, 24]),
        ("trainer.checkpoint_every_minutes=0", list(range(1, 25))),
        ("trainer.checkpoint_every_minutes=10", [12, 24]),
    ],
)
def test_every_so_many_steps_or_minutes(
    setting: str, steps: list[int], whole: Wholes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, saved = Checkpoints._save, []

    def save(self: Checkpoints, trainer: lightning.Trainer, is_best: bool = False) -> None:
        real(self, trainer, is_best)
        saved.append(trainer.global_step)

    monkeypatch.setattr(Checkpoints, "_save", save)
    train(tmp_path / "run", *TINY, setting)
    assert saved == steps
    assert {path.name for path in (tmp_path / "run/checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    assert_same(tmp_path / "run", whole())


def test_the_best_is_the_one_with_the_lowest_validation_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by what came before it was stopped and its folder moved."""
    losses = {12: 3.0, 24: 2.0, 36: 4.0}
    real = Checkpoints.on_train_epoch_end

    def pretend(self: Checkpoints, trainer: lightning.Trainer, module: Any) -> None:
        self.replicas.means.table.rows[trainer.global_step]["val/loss"] = losses[trainer.global_step]
        real(self, trainer, module)

    monkeypatch.setattr(Checkpoints, "on_train_epoch_end", pretend)
    told_to_stop(tmp_path / "run", 24, monkeypatch, "trainer.max_epochs=3")
    folder = (tmp_path / "run").rename(tmp_path / "moved")
    train(folder, *TINY, "trainer.max_epochs=3", "resume=auto")
    assert [content(folder, name)["global_step"] for name in ("best", "last")] == [24, 36]


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (fsync(file), done.append("fsync")))
    monkeypatch.setattr(os, "replace", lambda beside, path: (done.append(Path(path).name), replace(beside, path)))
    write_atomically(tmp_path / "last.ckpt", b"content", durable=True)
    assert done == ["fsync", "last.ckpt"]
    done.clear()
    train(tmp_path / "run", *TINY)
    files = [(before, name) for before, name in pairwise(done) if name.endswith(".ckpt")]
    assert files == [("fsync", "best.ckpt"), ("fsync", "last.ckpt")] * 2


def test_one_that_cannot_be_written_fails_the_run_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, say."""
    real, written = checkpoints.write_atomically, []

    def full(path: Path, *arguments: Any, **options: Any) -> None:
        written.append(path)
        if len(written) == 3:
            raise OSError(28, os.strerror(28))
        real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_atomically", full)
        with pytest.raises(OSError, match="No space left"):
            train(tmp_path / "run", *TINY)
    assert stored_result(tmp_path / "run")["error"] == "OSError: [Errno 28] No space left on device"
    assert [content(tmp_path / "run", name)["global_step"] for name in ("best", "last")] == [12, 12]
    train(tmp_path / "run", *TINY, "resume=auto")
    assert stored_status(tmp_path / "run") == "completed"
