"""A file that cannot be read now is not taken for a missing or a damaged one: the run is refused, nothing changes."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from poslab.cli.explain import explain
from poslab.errors import ConfigError
from poslab.runs.result import stored_status
from poslab.system.files import is_there, put_aside, read_file
from poslab.trained import load
from support.configs import compose
from support.paths import CONF
from support.runs import said, train
from support.stopping import TINY, Wholes, assert_same, content, told_to_stop
from support.unreadable import ERRORS, cannot_read, everything


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was stopped at step 14; its best checkpoint is of step 12."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        told_to_stop(folder, 14, patch)
    assert [content(folder, name)["global_step"] for name in ("best", "last")] == [12, 14]
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


@pytest.mark.parametrize("number", ERRORS, ids=lambda number: errno.errorcode[number])
@pytest.mark.parametrize("name", ["checkpoints/last.ckpt", "checkpoints/best.ckpt", "result.json", "config.yaml"])
def test_a_resume_is_refused_and_nothing_changes(
    name: str, number: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(folder)
    with monkeypatch.context() as patch:
        cannot_read(patch, folder / name, number)
        with pytest.raises(ConfigError) as refused:
            train(folder, *TINY, "resume=auto")
    assert str(refused.value) == (
        f"{folder / name} cannot be read now ({os.strerror(number)}), and nothing was changed; "
        "repeat the command when it can be read"
    )
    assert everything(folder) == before


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")]
)
def test_a_lack_of_memory_is_no_damage(error: Exception, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(folder)

    def fails(*arguments: object, **options: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", fails)
        with pytest.raises(ConfigError, match=r"last\.ckpt cannot be read now \(not enough memory\)") as refused:
            train(folder, *TINY, "resume=auto")
    assert everything(folder) == before
    assert explain(refused.value, CONF) == str(refused.value), "not the hint of a model that is too large"


def test_a_damaged_checkpoint_is_put_aside_and_the_one_before_is_used(
    folder: Path, whole: Wholes, caplog: pytest.LogCaptureFixture
) -> None:
    last = folder / "checkpoints/last.ckpt"
    cut = last.read_bytes()[:5000]
    last.write_bytes(cut)
    train(folder, *TINY, "resume=auto")
    assert_same(folder, whole())
    assert (folder / "checkpoints/last.ckpt.damaged").read_bytes() == cut
    (warning,) = said(caplog)
    assert f"{last} cannot be read (BadZipFile); it is kept as last.ckpt.damaged" in warning


def test_without_any_other_checkpoint_the_run_starts_again_and_the_damaged_ones_are_kept(
    folder: Path, whole: Wholes
) -> None:
    for name in ("last", "best"):
        (folder / f"checkpoints/{name}.ckpt").write_bytes(name.encode())
    (folder / "checkpoints/best.ckpt.damaged").write_bytes(b"of an earlier time")
    train(folder, *TINY, "resume=auto")
    assert_same(folder, whole())
    kept = {path.name: path.read_bytes() for path in (folder / "checkpoints").glob("*.damaged*")}
    assert kept == {
        "last.ckpt.damaged": b"last",
        "best.ckpt.damaged": b"of an earlier time",
        "best.ckpt.damaged-2": b"best",
    }


ODD = {
    "cut": b'{"status": "interr',
    "zeros": bytes(400),
    "not UTF-8": b"\xff\xfe",
    "a list": b"[1]",
    "no text": b'{"status": 3}',
    "seconds": b'{"status": "failed", "wall_seconds": "long"}',
    "a large number": b'{"status": "failed", "wall_seconds": 1' + b"0" * 400 + b"}",
    "completed without numbers": b'{"status": "completed", "metrics": null}',
    "completed with a text": b'{"status": "completed", "metrics": {"val/loss": "low"}}',
}


@pytest.mark.parametrize("what", ODD)
def test_a_damaged_result_is_named_and_written_again(
    what: str, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "result.json").write_bytes(ODD[what])
    # The training itself is that of every resume.
    monkeypatch.setattr("poslab.experiment.run.train", lambda *arguments: None)
    monkeypatch.setattr("poslab.experiment.record.RunRecord.conclude", lambda self: 0.0)
    train(folder, *TINY, "resume=auto")
    (warning,) = said(caplog)
    assert warning.startswith(f"{folder / 'result.json'} is damaged (")
    assert (folder / "result.json.damaged").read_bytes() == ODD[what]
    assert isinstance(json.loads((folder / "result.json").read_text())["wall_seconds"], float)


def test_scores_that_cannot_be_had_now_leave_the_run_incomplete(
    folder: Path, whole: Wholes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best checkpoint is read once more at the end."""
    real = torch.load
    calls = iter(range(100))

    def fails(*arguments: object, **options: object) -> object:
        # Two at the start, one by Lightning, and then the best one.
        if next(calls) == 3:
            raise MemoryError
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", fails)
        with pytest.raises(ConfigError, match=r"best\.ckpt cannot be read now \(not enough memory\)"):
            train(folder, *TINY, "resume=auto")
    assert stored_status(folder) == "failed"
    train(folder, *TINY, "resume=auto")
    assert_same(folder, whole())


def test_evaluation_says_that_it_cannot_look(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def fails(path: object, *arguments: object, **options: object) -> int:
        if str(path).endswith("last.ckpt"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", fails)
    with pytest.raises(ConfigError, match=r"last\.ckpt cannot be read now \(Input/output error\)"):
        load(folder)


def test_a_named_checkpoint_that_cannot_be_read_now(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from poslab.preflight.checks import preflight

    path = folder / "checkpoints/last.ckpt"
    config = compose(*TINY, f"ckpt_path={path}")
    cannot_read(monkeypatch, path, errno.EACCES)
    with pytest.raises(ConfigError, match="cannot be read now"):
        preflight(config, folder.parent / "new")


def test_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    assert is_there(tmp_path / "file")
    assert is_there(tmp_path)
    for missing in ("none", "file/none", "n" * 300, "a\0b"):
        assert not is_there(tmp_path / missing)
    for missing in ("none", "file/none", "n" * 300):
        with pytest.raises((FileNotFoundError, NotADirectoryError)):
            read_file(tmp_path / missing)
    cannot_read(monkeypatch, tmp_path / "file", errno.EACCES)
    for look in (is_there, read_file):
        with pytest.raises(ConfigError, match="file cannot be read now"):
            look(tmp_path / "file")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ConfigError, match="is not a regular file"):
            read_file(path)


def test_a_file_is_never_put_aside_over_another(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "a.csv").write_text(str(number))
        put_aside(tmp_path / "a.csv")
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {"a.csv.damaged": "0", "a.csv.damaged-2": "1", "a.csv.damaged-3": "2"}
