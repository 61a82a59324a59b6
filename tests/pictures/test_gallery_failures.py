"""No failure of a picture, a child or the disk reaches the run."""

import errno
import logging
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from poslab.pictures import drawing
from poslab.pictures import gallery as gallery_module
from poslab.pictures.figures import message_figure, to_png
from support.processes import children, needs_fork
from support.stage import Stage, bad, both_ways, good, slow, warnings_of


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before, "a child was left, running or as a zombie"


def die(parent: int) -> Figure:
    """Ends the child as the out-of-memory killer does, and only a child."""
    assert os.getpid() != parent
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@both_ways
def test_a_drawing_that_raises_is_warned_of_once_and_the_others_are_drawn(
    tmp_path: Path, in_background: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(tmp_path, in_background)
    with caplog.at_level(logging.DEBUG):
        for step in (0, 5, 9):
            stage.look(step, first=good(), broken=bad, last=good())
        stage.end()
    assert warnings_of(caplog) == [
        "the picture group/broken failed at step 0, training goes on: RuntimeError: cannot draw this"
    ]
    assert set(stage.files()) == {"group_first.png", "group_last.png"}
    assert stage.shown.tags == ["group/first", "group/last"] * 3
    # The log file has where it happened, every time.
    details = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert sum("Traceback" in text and "in bad" in text for text in details) == 3


@needs_fork
def test_a_killed_child_costs_its_pictures_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(tmp_path, in_background=True)
    stage.look(0, word=good("before"))
    stage.look(3, word=good(), killer=partial(die, os.getpid()))
    stage.look(6, word=partial(die, os.getpid()))
    stage.look(9, word=good("after"))
    stage.end()
    said = warnings_of(caplog)
    # One warning for each picture, however often it is missing.
    assert len(said) == 2
    assert all("its process ended early" in text and "training goes on" in text for text in said)
    assert [(tag, step) for tag, step, _ in stage.shown.pictures] == [("group/word", 0), ("group/word", 9)]
    assert stage.files() == {"group_word.png": stage.shown.pictures[-1][2]}


@needs_fork
def test_a_hanging_child_is_ended_when_patience_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(drawing, "PATIENCE_SECONDS", 0.2)
    stage = Stage(tmp_path, in_background=True)
    started = time.monotonic()
    stage.look(0, word=partial(slow, 100))
    stage.end()
    assert time.monotonic() - started < 10
    assert warnings_of(caplog) == [
        "the picture group/word failed at step 0, training goes on: its process took too long"
    ]
    assert stage.shown.pictures == []


@needs_fork
@pytest.mark.parametrize("what", ["os.fork", "poslab.pictures.drawing.Pipe"])
def test_without_processes_or_pipes_pictures_are_drawn_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EAGAIN, "none left")

    monkeypatch.setattr(what, refuse)
    stage = Stage(tmp_path, in_background=True)
    stage.look(0, word=good())
    stage.end()
    assert stage.files() == {"group_word.png": to_png(message_figure("good"))}
    assert warnings_of(caplog) == []


@both_ways
def test_a_full_disk_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, in_background: bool
) -> None:
    real = gallery_module.write_atomically

    def full(path: Path, content: bytes) -> None:
        if path.name == "group_large.png":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content)

    monkeypatch.setattr(gallery_module, "write_atomically", full)
    stage = Stage(tmp_path, in_background)
    for step in (0, 5):
        stage.look(step, large=good(), small=good())
    stage.end()
    assert len(warnings_of(caplog)) == 1
    assert "group/large failed at step 0, training goes on: OSError" in warnings_of(caplog)[0]
    assert "No space left" in warnings_of(caplog)[0]
    assert set(stage.files()) == {"group_small.png"}
    assert stage.shown.tags.count("group/small") == 2


def test_a_figures_folder_that_cannot_be_made_leaves_the_dashboard_its_pictures(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "figures").write_text("a file stands where the folder should")
    stage = Stage(tmp_path, in_background=False)
    for step in (0, 5):
        stage.look(step, a=good(), b=good())
    stage.end()
    assert len(warnings_of(caplog)) == 2
    assert stage.shown.tags == ["group/a", "group/b"] * 2


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), RuntimeError("closed"), ValueError("no such tag")])
def test_a_logger_that_cannot_show_a_picture_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    stage = Stage(tmp_path, in_background=False)

    def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr(stage.shown, "log_png", refuse)
    stage.look(0, word=good())
    stage.look(5, word=good())
    stage.end()
    assert len(warnings_of(caplog)) == 1
    assert set(stage.files()) == {"group_word.png"}


@both_ways
def test_after_an_exception_everything_ordered_is_still_drawn(tmp_path: Path, in_background: bool) -> None:
    stage = Stage(tmp_path, in_background)
    stage.look(0, word=good("first"))
    stage.gallery.order("group/word", 4, good("last"))
    stage.gallery.on_exception(stage.trainer, stage.module, RuntimeError("diverged"))
    assert [step for _, step, _ in stage.shown.pictures] == [0, 4]
    assert stage.files() == {"group_word.png": to_png(message_figure("last"))}
