"""The process that draws: lot after lot, and how it ends, dies or stands still."""

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from poslab.pictures import drawing
from poslab.pictures.drawing import DrawingProcess, Drawn, Order, draw, portable_size
from poslab.pictures.figures import message_figure, to_png
from support.processes import children, needs_fork
from support.stage import Stage, bad, good, slow, warnings_of


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before, "a child was left, running or as a zombie"


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


def test_only_what_a_module_names_can_be_sent() -> None:
    assert portable_size(Order("a", 1, good())) > 0
    assert portable_size(Order("a", 1, partial(message_figure, "x" * 1000))) > 1000
    assert portable_size(Order("a", 1, lambda: message_figure("x"))) == 0


def test_draw_keeps_order_and_tells_what_failed() -> None:
    done = draw([Order("a", 1, good()), Order("b", 2, bad), Order("c", 3, good())])
    assert [(one.tag, one.step, one.error is None) for one in done] == [("a", 1, True), ("b", 2, False), ("c", 3, True)]
    assert done[1].png == b""
    assert "RuntimeError: cannot draw this" in str(done[1].error)
