"""Numbers that a run has lost between a stop and its resume come back from the checkpoint, or the run says so."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from poslab.errors import ConfigError
from poslab.runs.result import stored_result, stored_status
from poslab.training import module
from support.replica_runs import TINY as SHORT
from support.runs import said, train
from support.stopping import TINY, Wholes, assert_same, told_to_stop

BUNDLE = (*SHORT, "trainer.log_every_n_steps=2", "seeds=2", "diagnostics=none")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was stopped at step 14."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        told_to_stop(folder, 14, patch)
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def events_of(folder: Path) -> Path:
    (found,) = folder.glob("events.out.tfevents.*")
    return found


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in EventAccumulator(str(folder)).Reload().Scalars(tag)]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "cut to its header": lambda content: content[: content.index(b"\n") + 1],
    "zeros at its end": lambda content: content[: len(content) // 2] + bytes(len(content) // 2),
    "not UTF-8": lambda content: b"\xff" + content,
    "a text for a number": lambda content: content.replace(b"0.005", b"fast"),
    "another number": lambda content: content.replace(b"0.005", b"0.006"),
}


@pytest.mark.parametrize("what", [*DAMAGES, "removed"])
def test_a_table_is_restored_from_the_checkpoint(
    what: str, folder: Path, whole: Wholes, caplog: pytest.LogCaptureFixture
) -> None:
    table = folder / "metrics.csv"
    if what == "removed":
        table.unlink()
    else:
        table.write_bytes(DAMAGES[what](table.read_bytes()))
    train(folder, *TINY, "resume=auto")
    assert_same(folder, whole())
    assert said(caplog) == [f"{table} lacks numbers up to step 14; they are restored from the checkpoint"]
    assert stored_result(folder)["learning"] == stored_result(whole())["learning"]


@pytest.mark.parametrize("what", ["empty", "cut", "zeros at its end", "removed", "in the middle"])
def test_the_dashboard_s_curves_are_written_again(
    what: str, folder: Path, whole: Wholes, caplog: pytest.LogCaptureFixture
) -> None:
    path = events_of(folder)
    content = path.read_bytes()
    if what == "removed":
        path.unlink()
    else:
        # What comes after the checkpoint is not needed: the file of a killed run often ends in half a record.
        cut = {"empty": b"", "cut": content[:700], "zeros at its end": content[:700] + bytes(len(content) - 700)}
        path.write_bytes(cut.get(what, content[:700] + bytes(5) + content[705:]))
    train(folder, *TINY, "resume=auto")
    for tag in ("val/loss", "train/loss", "learning_rate"):
        assert curve(folder, tag) == curve(whole(), tag)
    shown = EventAccumulator(str(folder)).Reload()
    assert "config/text_summary" in shown.Tags()["tensors"]
    assert said(caplog) == [
        f"{path} is missing or damaged; its curves are written again, and pictures of earlier steps may be lost"
    ]


def test_whole_pictures_of_a_damaged_event_file_are_kept(tmp_path: Path) -> None:
    settings = ("diagnostics=position_table",)
    with pytest.MonkeyPatch.context() as patch:
        told_to_stop(tmp_path / "run", 14, patch, *settings)
    path = events_of(tmp_path / "run")
    path.write_bytes(path.read_bytes()[:-9])
    train(tmp_path / "run", *TINY, *settings, "resume=auto")
    shown = EventAccumulator(str(tmp_path / "run"), {"images": 0}).Reload()
    assert [image.step for image in shown.Images("positions/table")] == [0, 12, 24]
    assert [event.step for event in shown.Scalars("val/loss")] == [0, 12, 24]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of two replicas that was stopped after its first epoch, and the same run whole."""
    folder = tmp_path_factory.mktemp("bundle")
    whole = train(folder / "whole", *BUNDLE)
    real = module.TrainingModule.on_train_batch_end
    steps = iter(range(8))

    def stop(self: module.TrainingModule, *arguments: object) -> None:
        real(self, *arguments)  # type: ignore[arg-type]
        if next(steps) == 6:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.TrainingModule, "on_train_batch_end", stop)
        with pytest.raises(SystemExit):
            train(folder / "run", *BUNDLE)
    return folder / "run", whole


LOSSES: dict[str, Callable[[Path], None]] = {
    "the folder of a replica": lambda copies: shutil.rmtree(copies / "seed1"),
    "all of them": shutil.rmtree,
    "its table": lambda copies: (copies / "seed1/metrics.csv").write_bytes(b"st"),
    "its configuration": lambda copies: (copies / "seed1/config.yaml").write_bytes(b"seed: ["),
    "its checkpoints": lambda copies: [path.write_bytes(b"x") for path in copies.glob("seed1/checkpoints/*")] and None,
}


@pytest.mark.parametrize("what", LOSSES)
def test_a_replica_is_restored_from_the_run_s_checkpoint(what: str, bundle: tuple[Path, Path], tmp_path: Path) -> None:
    folder, whole = Path(shutil.copytree(bundle[0], tmp_path / "run")), bundle[1]
    LOSSES[what](folder / "copies")
    train(folder, *BUNDLE, "resume=auto")
    assert_same(folder, whole)
    for seed in (0, 1):
        ours, theirs = (run / f"copies/seed{seed}" for run in (folder, whole))
        assert stored_result(ours)["metrics"] == stored_result(theirs)["metrics"]
        assert curve(ours, "val/loss") == curve(theirs, "val/loss")


def test_the_best_checkpoint_is_written_again_where_the_last_one_is_the_same(
    folder: Path, whole: Wholes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after its last step; nothing that comes later would write it."""
    shutil.rmtree(folder)
    shutil.copytree(whole(), folder)
    (folder / "result.json").write_text(json.dumps(stored_result(folder) | {"status": "failed"}))
    (folder / "checkpoints/best.ckpt").write_bytes(b"cut")
    train(folder, *TINY, "resume=auto")
    assert_same(folder, whole())


# -- checkpoints of older versions ----------------------------------------------------------------------------------


def make_older(folder: Path) -> None:
    """Take the tables out of the checkpoints, as in those of older versions."""
    for path in (folder / "checkpoints").glob("*.ckpt"):
        content = torch.load(path, weights_only=True)
        del content["run"]["tables"]
        torch.save(content, path)


def test_an_older_checkpoint_goes_on_from_the_file(folder: Path, whole: Wholes) -> None:
    make_older(folder)
    train(folder, *TINY, "resume=auto")
    assert_same(folder, whole())


@pytest.mark.parametrize("what", ["removed", "cut to its header", "cut", "zeros at its end"])
def test_without_the_file_an_older_checkpoint_is_refused(what: str, folder: Path) -> None:
    make_older(folder)
    table = folder / "metrics.csv"
    if what == "removed":
        table.unlink()
    else:
        table.write_bytes(DAMAGES[what](table.read_bytes()))
    with pytest.raises(ConfigError, match=r"metrics\.csv is missing or damaged, and last\.ckpt, of an older version"):
        train(folder, *TINY, "resume=auto")
    assert stored_status(folder) == "failed"


def test_an_older_checkpoint_alone_does_not_know_the_start(folder: Path, tmp_path: Path) -> None:
    make_older(folder)
    (tmp_path / "a").mkdir()
    shutil.copy(folder / "checkpoints/last.ckpt", tmp_path / "a/kept.ckpt")
    train(tmp_path / "second", *TINY, f"ckpt_path={tmp_path / 'a/kept.ckpt'}")
    metrics = stored_result(tmp_path / "second")["metrics"]
    assert "val/loss" in metrics
    assert not [name for name in metrics if name.startswith("start/")]


def test_no_run_is_complete_without_a_validation_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from poslab.training.checkpoints import Checkpoints

    real = Checkpoints.on_fit_end

    def forget(self: Checkpoints, *arguments: object) -> None:
        real(self, *arguments)  # type: ignore[arg-type]
        for row in self.replicas.means.table.rows.values():
            row.pop("val/loss", None)

    monkeypatch.setattr(Checkpoints, "on_fit_end", forget)
    with pytest.raises(ConfigError, match=r"metrics\.csv has no val/loss; start the run again"):
        train(tmp_path / "run", *TINY, "trainer.max_steps=3")
    assert stored_status(tmp_path / "run") == "failed"
    assert "has no val/loss" in stored_result(tmp_path / "run")["error"]
