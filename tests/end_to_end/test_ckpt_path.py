"""``ckpt_path``: a new folder goes on from a named checkpoint, or one line says why it cannot."""

import os
import shutil
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from poslab.errors import ConfigError
from poslab.preflight.checks import preflight
from poslab.runs.folder import RunFolder
from poslab.sweeps.sweep import checked_job
from poslab.training.checkpoints import room_for
from support.configs import compose
from support.runs import train
from support.stopping import TINY, Wholes, assert_same, content, stopped_at, told_to_stop


@pytest.mark.parametrize("settings", [("model.dropout=0.1",), ("seeds=2",)], ids=["one", "bundle"])
def test_a_new_folder_goes_on_from_a_step_within_an_epoch(
    settings: tuple[str, ...], whole: Wholes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told_to_stop(tmp_path / "first", 7, monkeypatch, *settings)
    before = {path: path.read_bytes() for path in (tmp_path / "first").rglob("*") if path.is_file()}
    monkeypatch.chdir(tmp_path)
    train(tmp_path / "second", *TINY, *settings, "ckpt_path=first/checkpoints/last.ckpt")
    assert_same(tmp_path / "second", whole(*settings))
    assert {path: path.read_bytes() for path in (tmp_path / "first").rglob("*") if path.is_file()} == before
    shown = EventAccumulator(str(tmp_path / "second")).Reload()
    assert [event.step for event in shown.Scalars("val/loss")] == [0, 12, 24]
    assert [event.step for event in shown.Scalars("train/loss")] == [0, 5, 10, 15, 20, 23]


def test_a_checkpoint_that_lies_alone_is_enough(whole: Wholes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told_to_stop(tmp_path / "first", 14, monkeypatch)
    (tmp_path / "a").mkdir()
    shutil.copy(tmp_path / "first/checkpoints/last.ckpt", tmp_path / "a/kept.ckpt")
    train(tmp_path / "second", *TINY, f"ckpt_path={tmp_path / 'a/kept.ckpt'}")
    weights = [content(folder)["state_dict"] for folder in (tmp_path / "second", whole())]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    # It contains the numbers that came before it.
    assert (tmp_path / "second/metrics.csv").read_bytes() == (whole() / "metrics.csv").read_bytes()


def test_stopped_again_it_goes_on_from_its_own(whole: Wholes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told_to_stop(tmp_path / "first", 5, monkeypatch)
    again = (f"ckpt_path={tmp_path / 'first/checkpoints/last.ckpt'}", "resume=auto")
    told_to_stop(tmp_path / "second", 3, monkeypatch, *again)
    assert content(tmp_path / "second")["global_step"] == 8
    shutil.rmtree(tmp_path / "first")
    train(tmp_path / "second", *TINY, *again)
    assert_same(tmp_path / "second", whole())


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was stopped at step 7."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        told_to_stop(folder, 7, patch)
    return folder


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def flip(path: Path) -> None:
    """Change a byte of a tensor; between two of them a byte is padding, which is not read."""
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
    bytes_ = bytearray(path.read_bytes())
    # After the entry's header come its name and an extra field, whose lengths are the header's last two numbers.
    name, extra = struct.unpack_from("<HH", bytes_, largest.header_offset + 26)
    bytes_[largest.header_offset + 30 + name + extra + largest.file_size // 2] ^= 1
    path.write_bytes(bytes_)


def reshape(path: Path) -> None:
    content = torch.load(path, weights_only=True)
    name = "model.embeddings.token_embedding.embedding.weight"
    content["state_dict"][name] = content["state_dict"][name][:60]
    torch.save(content, path)


def without_settings(path: Path) -> None:
    torch.save({"state_dict": {}, "global_step": 3}, path)


@pytest.mark.parametrize(
    ("spoil", "overrides", "said"),
    [
        (Path.unlink, [], "ckpt_path=.*last.ckpt does not exist"),
        (cut, [], r"ckpt_path=.*last.ckpt cannot be read \(BadZipFile\)"),
        (flip, [], r"ckpt_path=.*last.ckpt cannot be read \(\w+\)"),
        (without_settings, [], "does not contain the settings of its run"),
        (None, ["optimizer.lr=0.001"], r"optimizer\.lr was 0\.005 and is 0\.001; give the same ones"),
        (None, ["task.n_symbols=20"], r"task\.n_symbols was 64 and is 20"),
        (None, ["trainer.max_epochs=1"], r"trainer\.max_epochs was 2 and is 1"),
    ],
)
def test_what_cannot_be_gone_on_from_is_refused_before_a_folder_is_made(
    spoil: object, overrides: list[str], said: str, stopped: Path, tmp_path: Path
) -> None:
    shutil.copytree(stopped, tmp_path / "first")
    path = tmp_path / "first/checkpoints/last.ckpt"
    if callable(spoil):
        spoil(path)
    config = compose(*TINY, *overrides, f"ckpt_path={path}")
    with pytest.raises(ConfigError, match=said) as refused:
        preflight(config, tmp_path / "second")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "second").exists()


def test_other_shapes_are_refused_by_both(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "first")
    reshape(tmp_path / "first/checkpoints/last.ckpt")
    with pytest.raises(ConfigError, match=r"weight is \(60, 32\) there and \(65, 32\) here"):
        train(tmp_path / "first", *TINY, "resume=auto")


def test_a_whole_run_leaves_nothing_to_train(whole: Wholes, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is of the last step, 24; nothing is left to train"):
        train(tmp_path / "second", *TINY, f"ckpt_path={whole() / 'checkpoints/last.ckpt'}")


def test_a_sweep_refuses_it(stopped: Path) -> None:
    with pytest.raises(ConfigError, match=r"sweep\.resume resumes all of them"):
        checked_job(compose(*TINY, f"ckpt_path={stopped / 'checkpoints/last.ckpt'}"))


# -- resume=auto --------------------------------------------------------------------------------------------------


def test_another_run_s_checkpoint_in_the_folder_is_refused(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        told_to_stop(tmp_path / "other", 8, patch, "optimizer.lr=0.001")
    shutil.copy(tmp_path / "other/checkpoints/last.ckpt", tmp_path / "run/checkpoints/last.ckpt")
    with pytest.raises(ConfigError, match=r"belongs to a run with other settings: optimizer\.lr was 0\.001 and is"):
        train(tmp_path / "run", *TINY, "resume=auto")


def test_what_was_half_written_is_cleared_and_a_moved_folder_goes_on(
    stopped: Path, whole: Wholes, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    folder = tmp_path / "moved to"
    shutil.copytree(stopped, folder)
    for left in ("checkpoints/.last.ckpt.77.part", ".result.json.77.part"):
        (folder / left).write_bytes(b"half")
    train(folder, *TINY, "resume=auto")
    assert_same(folder, whole())
    assert sorted(path.name for path in folder.rglob("*.*") if "part" in path.name or path.suffix == ".ckpt") == [
        "best.ckpt",
        "last.ckpt",
    ]
    assert not [str(one.message) for one in recwarn]


def test_before_the_first_checkpoint_nothing_is_shown_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stopped_at(tmp_path / "run", 9, monkeypatch, *TINY)
    assert not list(folder.rglob("*.ckpt"))
    train(folder, *TINY, "resume=auto")
    shown = EventAccumulator(str(folder)).Reload()
    assert [event.step for event in shown.Scalars("train/loss")] == [0, 5, 10, 15, 20, 23]
    assert [event.step for event in shown.Scalars("val/loss")] == [0, 12, 24]


# -- room and rights ----------------------------------------------------------------------------------------------


def test_too_little_room_is_said_before_step_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    config = compose(*TINY)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10**9, 10**9, 1_500_000))
    with pytest.raises(ConfigError, match=r"has 1\.4 MiB free and the run needs about 16\.3 MiB"):
        preflight(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_takes_less_than_it_was_given_room_for(whole: Wholes) -> None:
    from poslab.build import build_model, build_task
    from poslab.config.schema import checked

    job = checked(compose(*TINY, "model.d_model=128", "model=transformer"))
    needed = room_for(build_model(job, build_task(job)), 1)
    parameters = sum(p.numel() for p in build_model(job, build_task(job)).parameters())
    assert needed > 3 * 12 * parameters
    used = sum(path.stat().st_size for path in whole().rglob("*") if path.is_file())
    assert used < room_for(build_model(checked(compose(*TINY)), build_task(job)), 1)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(ConfigError, match=r"cannot write to .*Read-only file system"):
        RunFolder(tmp_path).check_writable()
