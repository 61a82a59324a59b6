"""Told to stop, at any moment: what is kept, what the run says, the exit code, and who else hears of it."""

import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from poslab.errors import StoppedError
from poslab.experiment import record
from poslab.experiment.run import run
from poslab.pictures import drawing, gallery
from poslab.runs.files import RunFiles
from poslab.runs.result import stored_result, stored_status
from poslab.system.signals import DeferredSignals, answer_signals, stopping_signals
from poslab.training.module import TrainingModule
from support.runs import train
from support.stopping import (
    CODES,
    NUMBERS,
    TINY,
    Wholes,
    assert_ends_before_anything_is_made,
    assert_same,
    content,
    told_to_stop,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


@pytest.fixture(autouse=True)
def _handlers_are_restored() -> Iterator[None]:
    found = {number: signal.getsignal(number) for number in NUMBERS}
    # Another test may have run a whole command in this process.
    for number in NUMBERS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    after = {number: signal.getsignal(number) for number in NUMBERS}
    for number, handler in found.items():
        signal.signal(number, handler)
    assert after == before


def once(before: Callable[[], Any], number: int) -> Callable[..., Any]:
    """A function that sends this process a signal the first time, and then does what it did before."""
    left = [number]

    def telling(*arguments: Any, **options: Any) -> Any:
        if left:
            os.kill(os.getpid(), left.pop())
        return before(*arguments, **options)

    return telling


@pytest.mark.parametrize("number", NUMBERS)
def test_each_signal_stops_after_the_step_and_the_run_can_go_on(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = told_to_stop(tmp_path / "run", 7, monkeypatch, by=number)
    assert stopped.code == CODES[number]
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    result = stored_result(tmp_path / "run")
    assert (result["status"], result["error"]) == ("interrupted", f"StoppedError: stopped by {name}")
    assert content(tmp_path / "run")["global_step"] == 7


# Where a signal comes, and the steps that the checkpoint has then; None: the run ends as if it had not come.
MOMENTS: dict[str, tuple[Any, str, int | None]] = {
    "validation": (TrainingModule, "validation_step", 1),
    "drawing": (drawing.DrawingProcess, "collect", 12),
    "writing a checkpoint": (torch, "save", 12),
    "leaving the folder": (RunFiles, "finish", None),
    "the last report": (record, "final_report", None),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_whenever_it_comes(moment: str, whole: Wholes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, steps = MOMENTS[moment]
    settings = (*TINY, "diagnostics=position_table")
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(drawing, "CAN_FORK", True)
        patch.setattr(gallery, "allowed_threads", lambda: 2)
        patch.setattr(owner, name, once(getattr(owner, name), signal.SIGTERM))
        if steps is None:
            train(folder, *settings)
        else:
            with pytest.raises(StoppedError) as ended:
                train(folder, *settings)
            assert ended.value.code == 143
            assert content(folder)["global_step"] == steps
            assert stored_result(folder)["error"] == "StoppedError: stopped by SIGTERM"
    if steps is not None:
        train(folder, *settings, "resume=auto")
    assert_same(folder, whole("diagnostics=position_table"))


def test_the_same_signal_again_stops_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGUSR1)  # another one is no second one
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("went on")

    monkeypatch.setattr("poslab.training.learner.token_loss", twice)
    with pytest.raises(StoppedError) as ended:
        train(tmp_path / "run", *TINY)
    assert ended.value.code == 130
    assert stored_result(tmp_path / "run")["error"] == "StoppedError: stopped at once by a second Ctrl-C"
    assert not list((tmp_path / "run").rglob("*.ckpt"))


def test_again_while_the_last_pictures_are_drawn_the_run_says_so_and_can_go_on(
    whole: Wholes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("went on")

    settings = (*TINY, "diagnostics=position_table")
    with monkeypatch.context() as patch:
        patch.setattr(drawing, "CAN_FORK", True)
        patch.setattr(gallery, "allowed_threads", lambda: 2)
        patch.setattr(gallery.Gallery, "_draw_last", twice)
        with pytest.raises(StoppedError):
            train(tmp_path / "run", *settings)
    assert stored_result(tmp_path / "run")["error"] == "StoppedError: stopped at once by a second Ctrl-C"
    train(tmp_path / "run", *settings, "resume=auto")
    assert_same(tmp_path / "run", whole("diagnostics=position_table"))


def test_a_sweep_s_job_that_is_complete_passes_the_signal_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is done, the sweep is not."""
    from support.configs import compose

    monkeypatch.setattr(RunFiles, "finish", once(RunFiles.finish, signal.SIGTERM))
    with pytest.raises(StoppedError) as ended:
        run(compose(*TINY), tmp_path / "job", brief=True)
    assert ended.value.code == 143
    assert stored_status(tmp_path / "job") == "completed"


# -- who else has a handler ---------------------------------------------------------------------------------------


def test_another_s_handler_is_called_when_the_run_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of submitit, say: it puts its job back in the queue and ends the process with a code of its own."""

    def put_back(number: int, frame: object) -> None:
        assert content(tmp_path / "run")["global_step"] == 5
        raise SystemExit(-1)

    before = signal.signal(signal.SIGUSR2, put_back)
    try:
        stopped = told_to_stop(tmp_path / "run", 5, monkeypatch, by=signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert isinstance(stopped.__cause__, SystemExit)
    assert stopped.__cause__.code == -1


def test_a_handler_that_only_looks_does_not_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            told_to_stop(tmp_path / "run", 5, monkeypatch)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]
    assert stored_status(tmp_path / "run") == "completed"


def test_a_signal_that_is_ignored_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A command that another test has run in this process may have left its own.
    before = {number: signal.getsignal(number) for number in stopping_signals()}
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        answer_signals()
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            told_to_stop(tmp_path / "run", 5, monkeypatch)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert stored_status(tmp_path / "run") == "completed"


def test_beside_the_main_thread_nothing_is_touched() -> None:
    seen: list[Any] = []

    def defer() -> None:
        with DeferredSignals():
            seen.append([signal.getsignal(number) for number in NUMBERS])

    thread = threading.Thread(target=defer)
    thread.start()
    thread.join()
    assert seen == [[signal.getsignal(number) for number in NUMBERS]]


def test_a_signal_whose_exception_was_swallowed_stops_the_next_run(tmp_path: Path) -> None:
    try:
        answer_signals()
        with pytest.raises(StoppedError):
            os.kill(os.getpid(), signal.SIGUSR1)
        with pytest.raises(StoppedError, match="SIGUSR1"):
            train(tmp_path / "run", *TINY)
    finally:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
    assert stored_status(tmp_path / "run") == "interrupted"


def test_it_survives_the_way_from_another_process() -> None:
    again = pickle.loads(pickle.dumps(StoppedError(signal.SIGUSR1, at_once=True)))
    assert (str(again), again.code) == ("stopped at once by a second SIGUSR1", 143)


# -- real processes -----------------------------------------------------------------------------------------------


@pytest.mark.process
def test_before_anything_is_made_it_ends_at_once(tmp_path: Path) -> None:
    assert_ends_before_anything_is_made("SIGTERM", tmp_path)
