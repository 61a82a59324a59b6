"""Going on with a stopped run: the same numbers as if nothing had happened, or a refusal that says why."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import lightning
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from poslab.errors import ConfigError
from poslab.pictures import drawing, gallery
from poslab.runs.checkpoint import newest_checkpoint
from poslab.runs.folder import RunFolder
from poslab.runs.result import stored_result, stored_status
from poslab.training.checkpoints import Checkpoints
from support.runs import train
from support.stopping import TINY, stopped_at, told_to_stop

SHORT = ("data.steps_per_epoch=20", "data.val_examples=32", "trainer.max_epochs=3", "model.dropout=0.1")
QUIET = ("diagnostics=none",)


@pytest.mark.parametrize("limit", ["optimizer.decay=cosine", "trainer.max_steps=50"])
@pytest.mark.parametrize("update", [3, 31, 45])
def test_the_numbers_are_those_of_an_undisturbed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_runs: Callable[..., Path], update: int, limit: str
) -> None:
    whole = finished_runs(*SHORT, limit)
    folder = stopped_at(tmp_path / "stopped", update, monkeypatch, *SHORT, limit)
    train(folder, *SHORT, limit, "resume=auto")
    assert stored_status(folder) == "completed"
    assert (folder / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    weights = [torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in (whole, folder)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    for name in ("neighbour_similarity_curve", "heads_layer_0"):
        assert (folder / f"figures/{name}.png").read_bytes() == (whole / f"figures/{name}.png").read_bytes()


def test_stopped_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_runs: Callable[..., Path]) -> None:
    whole = finished_runs(*SHORT)
    folder = stopped_at(tmp_path / "stopped", 25, monkeypatch, *SHORT)
    stopped_at(folder, 25, monkeypatch, *SHORT, "resume=auto")
    train(folder, *SHORT, "resume=auto")
    assert (folder / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()


def test_what_was_seen_before_a_checkpoint_is_in_the_table_when_a_kill_comes_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint says that its step has been looked at, so that the resumed run does not look there again."""
    real = Checkpoints._save

    def save(self: Checkpoints, trainer: lightning.Trainer, is_best: bool) -> None:
        real(self, trainer, is_best)
        if not (tmp_path / "killed").exists():
            shutil.copytree(tmp_path / "whole", tmp_path / "killed")

    monkeypatch.setattr(Checkpoints, "_save", save)
    whole = train(tmp_path / "whole", *SHORT).rename(tmp_path / "reference")
    killed = train((tmp_path / "killed").rename(tmp_path / "whole"), *SHORT, "resume=auto")
    assert (killed / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()


def test_the_seconds_of_all_parts_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stopped_at(tmp_path / "run", 25, monkeypatch, *SHORT, *QUIET)
    result = stored_result(folder)
    assert 0 < result["wall_seconds"] < 500
    (folder / "result.json").write_text(json.dumps(result | {"wall_seconds": 1000.0}))
    seen = []
    with monkeypatch.context() as patch:
        # What a process that is killed in its second part leaves.
        patch.setattr("poslab.experiment.record.RunRecord.watch", lambda *arguments: seen.append(stored_result(folder)))
        stopped_at(folder, 5, monkeypatch, *SHORT, *QUIET, "resume=auto")
    assert [(each["status"], each["wall_seconds"]) for each in seen] == [("interrupted", 1000.0)]
    train(folder, *SHORT, *QUIET, "resume=auto")
    assert stored_status(folder) == "completed"
    assert 1000 < stored_result(folder)["wall_seconds"] < 1500


def test_a_truncated_checkpoint_is_passed_over(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    finished_runs: Callable[..., Path],
) -> None:
    whole = finished_runs(*SHORT)
    folder = stopped_at(tmp_path / "stopped", 45, monkeypatch, *SHORT)
    last = folder / "checkpoints/last.ckpt"
    last.write_bytes(last.read_bytes()[:1000])
    found, damaged = newest_checkpoint(RunFolder(folder))
    assert found is not None
    assert damaged == [last]
    assert (found.path, found.step) == (folder / "checkpoints/best.ckpt", 40)
    assert "last.ckpt cannot be read" in caplog.text
    train(folder, *SHORT, "resume=auto")
    assert (folder / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()


def test_other_settings_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stopped_at(tmp_path / "run", 25, monkeypatch, *SHORT, *QUIET)
    before = stored_result(folder)
    with pytest.raises(ConfigError, match=r"optimizer\.lr was 0\.005 and is 0\.001; seed was 0 and is 4"):
        train(folder, *SHORT, *QUIET, "resume=auto", "optimizer.lr=0.001", "seed=4")
    assert stored_result(folder) == before


def test_what_only_shows_the_run_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stopped_at(tmp_path / "run", 25, monkeypatch, *SHORT)
    train(folder, *SHORT, "resume=auto", "diagnostics=none", "trainer.threads=1", "data.num_workers=1")
    assert stored_status(folder) == "completed"


def test_a_complete_run_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, finished_runs: Callable[..., Path]
) -> None:
    folder = Path(shutil.copytree(finished_runs(*SHORT), tmp_path / "run"))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    train(folder, *SHORT, "resume=auto")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    with caplog.at_level("INFO"):
        train(folder, *SHORT, "resume=auto")
    assert f"{folder} is complete already; nothing to do" in caplog.text


def test_without_resume_a_folder_with_a_run_is_refused(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", *SHORT, *QUIET, "trainer.max_steps=2")
    with pytest.raises(ConfigError, match=r"already holds a run; choose another hydra.run.dir, or resume it"):
        train(folder, *SHORT, *QUIET)


def test_resume_in_a_new_folder_is_a_new_run(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", *SHORT, *QUIET, "trainer.max_steps=2", "resume=auto")
    assert stored_status(folder) == "completed"


@pytest.mark.parametrize(("step", "shown_late"), [(12, False), (15, True), (17, False), (24, False)])
def test_tensorboard_and_the_pictures_are_those_of_an_undisturbed_run_after_a_kill(
    step: int, shown_late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At step 12 and 24 an epoch has just been saved, at 15 a step within one, at 17 nothing."""
    settings = (*TINY, "diagnostics=[position_table,neighbour_similarity]", "trainer.checkpoint_every_n_steps=15")
    monkeypatch.setattr(drawing, "CAN_FORK", True)
    monkeypatch.setattr(gallery, "allowed_threads", lambda: 2)
    real = Checkpoints.on_train_epoch_end if step in (12, 24) else Checkpoints.on_train_batch_end

    def kill(self: Checkpoints, trainer: lightning.Trainer, *arguments: object) -> None:
        real(self, trainer, *arguments)
        if trainer.global_step == step and not (tmp_path / "killed").exists():
            if shown_late:
                # The gallery's own method is what is called before a save.
                self.before_save.__self__.finish(trainer)
            for files in self.replicas.all_files():
                files.save()
            shutil.copytree(tmp_path / "run", tmp_path / "killed")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, real.__name__, kill)
        whole = train(tmp_path / "run", *settings)
    killed = train(tmp_path / "killed", *settings, "resume=auto")
    assert (killed / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    streams = [EventAccumulator(str(folder), {"images": 0, "scalars": 0}).Reload() for folder in (whole, killed)]
    kinds = {
        "scalars": (EventAccumulator.Scalars, "value"),
        "images": (EventAccumulator.Images, "encoded_image_string"),
    }
    for kind, (read, content) in kinds.items():
        tags = [stream.Tags()[kind] for stream in streams]
        assert sorted(tags[0]) == sorted(tags[1])
        for tag in tags[0]:
            shown = [[(event.step, getattr(event, content)) for event in read(stream, tag)] for stream in streams]
            assert sorted(shown[0]) == sorted(shown[1]), tag
    for file in sorted((whole / "figures").iterdir()):
        assert file.read_bytes() == (killed / "figures" / file.name).read_bytes()


def test_only_the_first_and_the_last_pictures_also_when_it_was_stopped_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (*TINY, "diagnostics=position_table", "logger.pictures=ends", "trainer.max_epochs=3")
    told_to_stop(tmp_path / "run", 12, monkeypatch, *settings[len(TINY) :])
    train(tmp_path / "run", *settings, "resume=auto")
    shown = EventAccumulator(str(tmp_path / "run"), {"images": 0}).Reload().Images("positions/table")
    assert [image.step for image in shown] == [0, 36]


def test_steps_that_a_stopped_run_logged_twice_are_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step after a checkpoint is logged at the checkpoint's own."""
    settings = ("data.steps_per_epoch=10", "trainer.max_epochs=3", "data.val_examples=32", "diagnostics=none")
    folder = stopped_at(tmp_path / "run", 25, monkeypatch, *settings)
    train(folder, *settings, "resume=auto")
    shown = EventAccumulator(str(folder)).Reload().Scalars("train/loss")
    assert [event.step for event in shown] == [0, 10, 20, 29]
