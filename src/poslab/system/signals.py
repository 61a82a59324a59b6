"""Signals that ask a process to stop: Ctrl-C, SIGTERM, and SIGUSR1 or SIGUSR2, which SLURM sends before a time limit.

Outside a run such a signal ends the process at once, with the exit code that a shell and a scheduler expect. While a
run trains or writes its results, the signal is deferred until the run is ready for it; the same signal a second time
ends the run at once.
"""

import signal
import threading
from types import FrameType
from typing import Any

from poslab.errors import SIGNAL_NAMES, StoppedError


def as_stopped(stop: BaseException) -> StoppedError:
    """The exception that ended a run, as a `StoppedError`; any other KeyboardInterrupt or exit counts as a Ctrl-C."""
    return stop if isinstance(stop, StoppedError) else StoppedError(signal.SIGINT)


def stopping_signals() -> list[signal.Signals]:
    """The signals that ask for a stop and that this system has."""
    return [getattr(signal, name) for name in SIGNAL_NAMES if hasattr(signal, name)]


def answer_signals() -> None:
    """Have a SIGTERM, SIGUSR1 or SIGUSR2 end this process by a `StoppedError`, as Ctrl-C does by a KeyboardInterrupt.

    An ignored signal (``nohup``, for example) stays ignored. Call it in the main thread only.
    """
    for number in stopping_signals():
        if number != signal.SIGINT and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _stop_now)


# Signals whose exception a library has swallowed (an import in a try block, for example): the next run ends by them.
_unanswered: list[int] = []


def _stop_now(number: int, frame: FrameType | None) -> None:
    _unanswered[:] = [number]
    raise StoppedError(number)


class DeferredSignals:
    """Context manager that defers signals to stop until `deliver` is called; the same signal again stops at once.

    `deliver` does what the signal would have done without this: it calls the handler that was installed before (that of
    submitit, which requeues its job, or that of a sweep's worker), or raises. Outside the main thread, Python delivers
    no signals and nothing is deferred.

    Attributes:
        pending: the signal that waits for `deliver`; None without one.
    """

    def __init__(self) -> None:
        self.pending: int | None = None
        self._before: dict[int, Any] = {}
        self._seen: set[int] = set()

    def __enter__(self) -> "DeferredSignals":
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in stopping_signals()}
            # None: the handler was not installed by Python, so Python cannot install it again.
            self._before = {number: handler for number, handler in handlers.items() if handler is not None}
            self.install()
            if _unanswered:
                self._defer(_unanswered.pop(), None)
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Install the handlers, again where a library has replaced them; an ignored signal stays ignored."""
        for number, handler in self._before.items():
            signal.signal(number, handler if handler == signal.SIG_IGN else self._defer)

    def request_stop(self) -> None:
        """Defer a SIGTERM, as if it had been received: another process of the same run has received a signal."""
        self._defer(signal.SIGTERM, None)

    def deliver(self) -> None:
        """Deliver the pending signal, if any; returns if the handler that was installed before returns.

        Raises:
            StoppedError: the signal stops the run.
        """
        if self.pending is None:
            return
        number, self.pending = self.pending, None
        handler = self._before.get(number, signal.SIG_DFL)
        if not callable(handler) or handler is _stop_now:
            raise StoppedError(number)
        try:
            handler(number, None)
        except (KeyboardInterrupt, SystemExit) as stop:
            raise StoppedError(number) from stop
        self._seen.discard(number)

    def _defer(self, number: int, frame: FrameType | None) -> None:
        if number in self._seen:
            raise StoppedError(number, at_once=True)
        self._seen.add(number)
        self.pending = self.pending or number
