"""Pictures drawn beside the training: the same bytes as in place, in order, and when."""

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from poslab.diagnostics.position_table import draw_table
from poslab.pictures import drawing
from poslab.pictures import gallery as gallery_module
from poslab.pictures.drawing import CAN_FORK
from poslab.pictures.figures import message_figure, to_png
from poslab.pictures.gallery import Gallery
from support.processes import children, needs_fork
from support.stage import Stage, both_ways, good, slow


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before, "a child was left, running or as a zombie"


def note_process(file: Path) -> Figure:
    with file.open("a") as notes:
        notes.write(f"{os.getpid()}\n")
    time.sleep(0.02)
    return message_figure("noted")


@needs_fork
def test_background_and_in_place_give_the_same_bytes(tmp_path: Path) -> None:
    table = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
    stages = [Stage(tmp_path / name, in_background) for name, in_background in (("back", True), ("place", False))]
    for stage in stages:
        stage.look(0, table=partial(draw_table, table), word=good())
        stage.look(7, table=partial(draw_table, -table))
        stage.end()
    back, place = stages
    assert back.shown.pictures == place.shown.pictures
    assert [(tag, step) for tag, step, _ in back.shown.pictures] == [
        ("group/table", 0),
        ("group/word", 0),
        ("group/table", 7),
    ]
    assert back.files() == place.files()
    assert back.shown.pictures[1][2] == to_png(message_figure("good"))


@needs_fork
def test_drawing_really_happens_in_another_process(tmp_path: Path) -> None:
    stage = Stage(tmp_path, in_background=True)
    for step in range(3):
        stage.look(step, pid=partial(note_process, tmp_path / "pids"))
    stage.gallery.finish(stage.trainer)
    # One process for all of them.
    first, *others = (tmp_path / "pids").read_text().split()
    assert int(first) != os.getpid()
    assert others == [first, first]
    stage.end()


@needs_fork
def test_what_no_other_process_can_be_told_is_drawn_here(tmp_path: Path) -> None:
    stage = Stage(tmp_path, in_background=True)
    stage.look(0, here=lambda: note_process(tmp_path / "here"), there=partial(note_process, tmp_path / "there"))
    stage.end()
    assert (tmp_path / "here").read_text().split() == [str(os.getpid())]
    assert str(os.getpid()) not in (tmp_path / "there").read_text()
    assert set(stage.shown.tags) == {"group/here", "group/there"}


@needs_fork
def test_when_training_is_over_both_processes_draw(tmp_path: Path) -> None:
    stage = Stage(tmp_path, in_background=True)
    for n in range(12):
        stage.gallery.order(f"group/{n}", 3, partial(note_process, tmp_path / "pids"))
    stage.end()
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 12
    assert len(set(pids)) == 2
    assert str(os.getpid()) in pids
    assert sorted(stage.shown.tags) == sorted(f"group/{n}" for n in range(12))


@needs_fork
@pytest.mark.parametrize(("threads", "in_background"), [(1, False), (2, True)])
def test_a_child_draws_only_where_there_is_a_core_for_it(
    threads: int, in_background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery_module, "allowed_threads", lambda: threads)
    assert Gallery().in_background is in_background
    monkeypatch.setattr(drawing, "CAN_FORK", False)
    assert not Gallery().in_background


@both_ways
def test_of_the_ends_only_the_first_and_the_last_picture_of_each_tag_are_drawn(
    tmp_path: Path, in_background: bool
) -> None:
    stage = Stage(tmp_path, in_background, only_ends=True)
    stage.look(0, often=good("a"), seldom=good("b"))
    stage.look(1, often=good("c"), seldom=good("d"))
    stage.look(2, often=good("e"))
    stage.look(3, often=good("f"))
    stage.end()
    # The last look's in any order: two processes draw them.
    assert sorted((tag, step) for tag, step, _ in stage.shown.pictures) == [
        ("group/often", 0),
        ("group/often", 3),
        ("group/seldom", 0),
        ("group/seldom", 1),
    ]


@both_ways
def test_the_file_is_the_last_picture_of_its_tag(tmp_path: Path, in_background: bool) -> None:
    stage = Stage(tmp_path, in_background)
    for step in (0, 5, 9):
        stage.look(step, word=good(str(step)))
    stage.end()
    assert [step for _, step, _ in stage.shown.pictures] == [0, 5, 9]
    assert stage.files() == {"group_word.png": stage.shown.pictures[-1][2]}
    assert stage.shown.pictures[0][2] != stage.shown.pictures[-1][2]


@needs_fork
def test_there_is_at_most_one_child_at_a_time(tmp_path: Path) -> None:
    stage = Stage(tmp_path, in_background=True)
    before = children()
    for step in range(4):
        stage.look(step, word=partial(slow, 0.05))
        assert len(children() - before) == 1
    stage.end()
    assert children() == before
    assert [step for _, step, _ in stage.shown.pictures] == [0, 1, 2, 3]


def test_nothing_ordered_starts_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path, in_background=CAN_FORK)
    before = children()
    stage.gallery.on_train_start(stage.trainer, stage.module)
    stage.look(0)
    assert children() == before
    stage.end()
    assert not (tmp_path / "figures").exists()
