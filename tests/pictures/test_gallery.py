"""Pictures drawn beside the training: same bytes as in place, and no failure of a child reaches the run."""

import errno
import logging
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
from matplotlib.figure import Figure

from poslab.diagnostics.position_table import draw_table
from poslab.pictures import drawing
from poslab.pictures import gallery as gallery_module
from poslab.pictures.drawing import CAN_FORK, DrawingProcess, Drawn, Order, draw, portable_size
from poslab.pictures.figures import message_figure, to_png
from poslab.pictures.gallery import Gallery
from support.processes import children, needs_fork

both_ways = pytest.mark.parametrize("in_background", [pytest.param(True, marks=needs_fork), False])


class Shown:
    """A logger that remembers the pictures it is handed."""

    def __init__(self) -> None:
        self.pictures: list[tuple[str, int, bytes]] = []

    def log_png(self, tag: str, png: bytes, step: int) -> None:
        self.pictures.append((tag, step, png))

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _, _ in self.pictures]


class Stage:
    """A gallery with a trainer around it that never trains."""

    def __init__(self, folder: Path, in_background: bool, only_ends: bool = False) -> None:
        self.folder = folder
        self.shown = Shown()
        self.trainer = lightning.Trainer(
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        # One that shows pictures, and one that cannot.
        self.trainer.loggers = [self.shown, object()]  # type: ignore[list-item]
        self.module = lightning.LightningModule()
        self.gallery = Gallery(in_background=in_background, only_ends=only_ends)

    def look(self, step: int, **makes: Callable[[], Figure]) -> None:
        """What a validation does: order pictures and start to draw them."""
        for tag, make in makes.items():
            self.gallery.order(f"group/{tag}", step, make)
        self.gallery.on_validation_end(self.trainer, self.module)

    def end(self) -> None:
        self.gallery.on_train_end(self.trainer, self.module)
        self.gallery.teardown(self.trainer, self.module, "fit")

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.folder / "figures").glob("*")}


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before, "a child was left, running or as a zombie"


def good(text: str = "good") -> Callable[[], Figure]:
    return partial(message_figure, text)


def bad() -> Figure:
    raise RuntimeError("cannot draw this")


def die(parent: int) -> Figure:
    """Ends the child as the out-of-memory killer does, and only a child."""
    assert os.getpid() != parent
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def note_process(file: Path) -> Figure:
    with file.open("a") as notes:
        notes.write(f"{os.getpid()}\n")
    time.sleep(0.02)
    return message_figure("noted")


def slow(seconds: float, sign: Path | None = None) -> Figure:
    if sign is not None:
        sign.touch()
    time.sleep(seconds)
    return message_figure("slow")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


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


@pytest.fixture
def process() -> Iterator[DrawingProcess]:
    process = DrawingProcess()
    yield process
    process.end()


def begun(process: DrawingProcess, sign: Path, seconds: float) -> None:
    """Have it draw something that takes so long, and return when it is at it."""
    assert process.send([Order("a", 1, partial(slow, seconds, sign))])
    while not sign.exists():
        time.sleep(0.005)


@needs_fork
def test_one_process_draws_lot_after_lot(process: DrawingProcess) -> None:
    for step in range(3):
        assert process.send([Order("a", step, good()), Order("b", step, bad)])
        assert [order.step for order in process.orders] == [step, step]
        done = process.collect()
        assert [(one.tag, one.step, one.error is None) for one in done] == [("a", step, True), ("b", step, False)]
        assert process.orders == []


@needs_fork
def test_a_process_that_someone_else_waited_for_is_read_all_the_same(process: DrawingProcess, tmp_path: Path) -> None:
    begun(process, tmp_path / "started", 0.1)
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)
    assert [(one.tag, one.step, one.error) for one in process.collect()] == [("a", 1, "its process ended early")]


@needs_fork
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_what_stops_the_training_does_not_stop_the_drawing(
    number: signal.Signals, process: DrawingProcess, tmp_path: Path
) -> None:
    begun(process, tmp_path / "started", 0.3)
    os.kill(process.pid, number)
    (done,) = process.collect()
    assert done.error is None
    assert done.png == to_png(message_figure("slow"))


@needs_fork
def test_a_killed_process_is_not_waited_for(process: DrawingProcess, tmp_path: Path) -> None:
    begun(process, tmp_path / "started", 100)
    assert not process.ready
    os.kill(process.pid, signal.SIGKILL)
    (failed,) = process.collect()
    assert failed.error == "its process ended early"
    assert process.ready


@needs_fork
@pytest.mark.parametrize("what", ["is told much", "has much to say"])
def test_a_process_that_stands_still_is_given_up_however_much_is_said(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the pipe holds: who writes waits for the reader, and the reader for the rest."""
    monkeypatch.setattr(drawing, "PATIENCE_SECONDS", 0.3)
    if what == "has much to say":
        # Half of an answer, and no more.
        half = b"\0\0\0\x08"
        monkeypatch.setattr(drawing, "_serve", lambda pipe: (os.write(pipe.fileno(), half), time.sleep(60)))
    process = DrawingProcess()
    started = time.monotonic()
    if what == "is told much":
        os.kill(process.pid, signal.SIGSTOP)
        assert not process.send([Order("a", 1, partial(message_figure, "x" * 4_000_000))])
    else:
        process.orders = [Order("a", 1, good())]
        assert [one.error for one in process.collect()] == ["its process took too long"]
    assert time.monotonic() - started < 5
    assert wait_until(lambda: not running(process.pid))


def wait_until(condition: Callable[[], bool]) -> bool:
    """Whether it comes true within ten seconds."""
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@needs_fork
def test_a_process_that_died_idle_takes_no_orders_and_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(tmp_path, in_background=True)
    stage.look(0, word=good("before"))
    stage.gallery.finish(stage.trainer)
    assert stage.gallery._process is not None
    os.kill(stage.gallery._process.pid, signal.SIGKILL)
    os.waitpid(stage.gallery._process.pid, 0)
    stage.look(1, word=good("after"))
    stage.end()
    assert [step for _, step, _ in stage.shown.pictures] == [0, 1]
    assert warnings_of(caplog) == []


@needs_fork
def test_the_process_ends_with_the_one_that_it_draws_for(tmp_path: Path) -> None:
    drawing_pid = tmp_path / "pid"
    pid = os.fork()
    if pid == 0:
        try:
            drawing_pid.write_text(str(DrawingProcess().pid))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert wait_until(lambda: not running(int(drawing_pid.read_text())))


def running(pid: int) -> bool:
    """Whether a process is there that has not ended; one that nobody has waited for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@needs_fork
def test_an_answer_that_was_cut_short_at_any_place_is_a_failed_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = [Order("a", 1, good()), Order("b", 1, good())]
    whole = pickle.dumps([Drawn("a", 1, b"png" * 30, None), Drawn("b", 1, b"png", None)])
    for length in range(0, len(whole), 7):
        monkeypatch.setattr(drawing, "_serve", lambda pipe, length=length: pipe.send_bytes(whole[:length]))
        process = DrawingProcess()
        process.orders = orders
        assert [(one.tag, one.error) for one in process.collect()] == [
            ("a", "its process ended early"),
            ("b", "its process ended early"),
        ]


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


def test_only_what_a_module_names_can_be_sent() -> None:
    assert portable_size(Order("a", 1, good())) > 0
    assert portable_size(Order("a", 1, partial(message_figure, "x" * 1000))) > 1000
    assert portable_size(Order("a", 1, lambda: message_figure("x"))) == 0


def test_draw_keeps_order_and_tells_what_failed() -> None:
    done = draw([Order("a", 1, good()), Order("b", 2, bad), Order("c", 3, good())])
    assert [(one.tag, one.step, one.error is None) for one in done] == [("a", 1, True), ("b", 2, False), ("c", 3, True)]
    assert done[1].png == b""
    assert "RuntimeError: cannot draw this" in str(done[1].error)
