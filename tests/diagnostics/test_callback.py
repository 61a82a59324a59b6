"""No failure of a look, a picture, a child process or the disk ends a training."""

import errno
import gc
import logging
import os
import signal
import time
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from matplotlib import pyplot

from poslab.data.module import Probe
from poslab.diagnostics import Finding, Gallery, Scalars, heads
from poslab.diagnostics.heads import HeadMaps
from poslab.model import TinyAttentionLM
from poslab.pictures import drawing
from poslab.pictures import figures as figures_module
from poslab.pictures import gallery as gallery_module
from poslab.training.module import TrainingModule
from support.diagnosed_runs import FILES, ONE_EPOCH, figures
from support.event_files import IMAGES, read, steps
from support.processes import children, needs_fork
from support.runs import SMALL, numbers, said, status, train


class Fails(Exception):
    """What a broken diagnostic raises."""


def half(self: HeadMaps, model: TinyAttentionLM, probe: Probe) -> Iterator[Finding]:
    yield Scalars({"heads/before": 1.0})
    raise Fails("cannot look")


def test_a_look_that_raises_is_warned_of_once_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(HeadMaps, "look", half)
    with caplog.at_level(logging.DEBUG, logger="poslab"):
        folder = train(tmp_path / "run", *SMALL, "trainer.max_epochs=2")
    assert said(caplog) == [
        "diagnostic HeadMaps failed at step 0, training goes on (see train.log): Fails('cannot look')"
    ]
    assert status(folder) == "completed"
    assert figures(folder) == FILES - {"heads_layer_0.png"}
    events = read(folder)
    # What it had found before is shown, and it is asked again every time.
    assert steps(events, "heads/before") == [0, 3, 6]
    details = [record for record in caplog.records if record.getMessage() == "diagnostic HeadMaps failed"]
    assert len(details) == 3
    assert all(record.exc_info for record in details)


@pytest.mark.parametrize("in_background", [pytest.param(True, marks=needs_fork), False])
def test_a_drawing_that_raises_costs_its_picture_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, in_background: bool
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise Fails("cannot draw")

    monkeypatch.setattr(heads, "draw_heads", fail)
    monkeypatch.setattr("poslab.experiment.trainer.Gallery", partial(Gallery, in_background))
    folder = train(tmp_path / "run", *SMALL, "trainer.max_epochs=2")
    (warning,) = said(caplog)
    assert "heads/layer_0 failed at step 0, training goes on" in warning
    assert "cannot draw" in warning
    assert status(folder) == "completed"
    assert figures(folder) == FILES - {"heads_layer_0.png"}
    assert steps(read(folder), "positions/table") == [0, 3, 6]


def test_a_full_disk_costs_files_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gallery_module, "write_atomically", full)
    folder = train(tmp_path / "run", *SMALL, "trainer.max_epochs=2", "diagnostics=[position_table]")
    (warning,) = said(caplog)
    assert "No space left on device" in warning
    assert status(folder) == "completed"
    assert figures(folder) == set()


def test_a_figures_folder_that_cannot_be_made_costs_files_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "figures").write_text("in the way")
    train(folder, *SMALL, "trainer.max_epochs=2", "diagnostics=[position_table]")
    assert len(said(caplog)) == 1
    assert status(folder) == "completed"


@pytest.fixture
def drawn_by_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where this process has one core only."""
    monkeypatch.setattr("poslab.experiment.trainer.Gallery", partial(Gallery, in_background=True))


@needs_fork
@pytest.mark.usefixtures("drawn_by_a_child")
def test_a_child_that_is_killed_costs_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, before = drawing.draw, children()

    def die_once(orders: list[drawing.Order]) -> list[drawing.Drawn]:
        if not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return real(orders)

    # Where the process that draws has it from; the training has its own.
    monkeypatch.setattr(drawing, "draw", die_once)
    folder = train(tmp_path / "run", *SMALL, "trainer.max_epochs=2")
    assert said(caplog)
    assert len(said(caplog)) == len(set(said(caplog))) <= len(IMAGES)
    assert all("step 0" in warning and "its process ended early" in warning for warning in said(caplog))
    assert status(folder) == "completed"
    assert figures(folder) == FILES
    assert steps(read(folder), "heads/layer_0") == [3, 6]
    assert children() == before


@needs_fork
@pytest.mark.usefixtures("drawn_by_a_child")
def test_a_child_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = children()
    monkeypatch.setattr(drawing, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(drawing, "draw", lambda _: time.sleep(600))
    started = time.monotonic()
    folder = train(tmp_path / "run", *SMALL, "diagnostics=[heads]")
    assert time.monotonic() - started < 60
    (warning,) = said(caplog)
    assert "its process took too long" in warning
    assert status(folder) == "completed"
    assert children() == before


@needs_fork
def test_background_and_in_place_leave_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poslab.experiment.trainer.Gallery", partial(Gallery, in_background=True))
    back = train(tmp_path / "back", *ONE_EPOCH)
    monkeypatch.setattr("poslab.experiment.trainer.Gallery", partial(Gallery, in_background=False))
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    place = train(tmp_path / "place", *ONE_EPOCH)
    shown = [
        {tag: [(one.step, one.encoded_image_string) for one in events.Images(tag)] for tag in IMAGES}
        for events in (read(back), read(place))
    ]
    assert shown[0] == shown[1]
    assert numbers(back) == numbers(place)
    for name in FILES:
        assert (back / "figures" / name).read_bytes() == (place / "figures" / name).read_bytes(), name


@needs_fork
@pytest.mark.usefixtures("drawn_by_a_child")
def test_no_process_is_left_by_a_run_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise Fails("training")

    before = children()
    monkeypatch.setattr(TrainingModule, "training_step", fail)
    with pytest.raises(Fails):
        train(tmp_path / "run", *ONE_EPOCH, "diagnostics=[position_table]")
    assert children() == before
    # The untrained state was seen.
    assert figures(tmp_path / "run") == {"positions_table.png"}


def test_no_figure_stays_open_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []
    real = figures_module.LabelledFigure

    def watch(*arguments: Any, **options: Any) -> Any:
        figure = real(*arguments, **options)
        made.append(weakref.ref(figure))
        return figure

    monkeypatch.setattr(figures_module, "LabelledFigure", watch)
    monkeypatch.setattr("poslab.experiment.trainer.Gallery", partial(Gallery, in_background=False))
    train(tmp_path / "run", *ONE_EPOCH)
    gc.collect()
    assert len(made) == 2 * len(IMAGES)
    assert [reference() for reference in made if reference() is not None] == []
    assert pyplot.get_fignums() == []
