"""Being told to stop: by Ctrl-C, by SIGTERM, by SIGUSR1 or SIGUSR2 as SLURM sends them before a job's time is over.

Outside a run such a signal ends the process at once, with the exit code that a shell and a scheduler expect. While a
run trains or writes its results the signal waits until the run is ready for it; the same signal a second time does not.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from poslab.errors import NAMES, StoppedError


def as_stopped(stop: BaseException) -> StoppedError:
    """What ended a run, as a `StoppedError`: whatever else raises a KeyboardInterrupt or exits is a Ctrl-C."""
    return stop if isinstance(stop, StoppedError) else StoppedError(signal.SIGINT)


def stopping_signals() -> list[signal.Signals]:
    """The signals that ask for a stop and that this system has."""
    return [getattr(signal, name) for name in NAMES if hasattr(signal, name)]


def answer_signals() -> None:
    """From now on a SIGTERM, SIGUSR1 or SIGUSR2 ends this process by a `StoppedError`, as Ctrl-C does on its own.

    One that is ignored (``nohup``, say) stays so. Only the main thread may be asked.
    """
    for number in stopping_signals():
        if number != signal.SIGINT and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _stop_now)


# Signals whose exception a library has swallowed, an import in a try block, say: the next run ends by them.
_unanswered: list[int] = []


def _stop_now(number: int, frame: FrameType | None) -> None:
    _unanswered[:] = [number]
    raise StoppedError(number)


class Hold:
    """From `begin` to `end`, a signal to stop waits until `deliver` is called; the same one again stops at once.

    Delivering does what the signal would have done without: an outer handler (of submitit, which puts its job back in
    the queue; of a sweep's worker) is called, or the process is stopped. In any but the main thread nothing is held.
    """

    def __init__(self) -> None:
        self.told: int | None = None
        """The signal that waits, if any."""
        self._before: dict[int, Any] = {}
        self._seen: set[int] = set()

    def begin(self) -> None:
        """Keep signals from here on."""
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in stopping_signals()}
            # None: not set by Python, so nothing that could be set again.
            self._before = {number: handler for number, handler in handlers.items() if handler is not None}
            self.listen()
            if _unanswered:
                self._note(_unanswered.pop(), None)

    def end(self) -> None:
        """Let them do again what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def listen(self) -> None:
        """Be the one who is told; again after a library has put itself there. Whatever is ignored stays so."""
        for number, handler in self._before.items():
            signal.signal(number, handler if handler == signal.SIG_IGN else self._note)

    def tell(self) -> None:
        """Tell this process to stop, as another one of the same run has been told."""
        self._note(signal.SIGTERM, None)

    def deliver(self) -> None:
        """Let the signal that waits, if any, do what it does; returns where its handler does no more than that.

        Raises:
            StoppedError: it stops the run.
        """
        if self.told is None:
            return
        number, self.told = self.told, None
        handler: Callable[[int, FrameType | None], Any] | signal.Handlers = self._before.get(number, signal.SIG_DFL)
        if not callable(handler) or handler is _stop_now:
            raise StoppedError(number)
        try:
            handler(number, None)
        except (KeyboardInterrupt, SystemExit) as stop:
            raise StoppedError(number) from stop
        self._seen.discard(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number in self._seen:
            raise StoppedError(number, at_once=True)
        self._seen.add(number)
        self.told = self.told or number
