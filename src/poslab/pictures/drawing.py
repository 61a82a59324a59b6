"""A child process that draws pictures, so that training does not wait for matplotlib."""

import gc
import os
import pickle
import signal
import socket
import struct
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import NamedTuple

from matplotlib.figure import Figure

from poslab.pictures.figures import to_png
from poslab.system.signals import stopping_signals

# Linux only: macOS has fork too, but its system libraries can crash in the forked process.
CAN_FORK = sys.platform.startswith("linux")
PATIENCE_SECONDS = 60.0
"""Seconds to wait for pictures that the child process is drawing. After that, the pictures are given up and the run
continues."""


class Order(NamedTuple):
    """A picture to be drawn: its tag, its step and the function that makes the figure."""

    tag: str
    step: int
    draw: Callable[[], Figure]


class Drawn(NamedTuple):
    """A drawn picture as PNG, or the error (a traceback or one line) that prevented it."""

    tag: str
    step: int
    png: bytes
    error: str | None


def draw(orders: list[Order]) -> list[Drawn]:
    """Draw all orders; if one fails, its error is returned and the others are drawn."""
    done = []
    for tag, step, make in orders:
        try:
            done.append(Drawn(tag, step, to_png(make()), None))
        except Exception:
            done.append(Drawn(tag, step, b"", traceback.format_exc()))
    return done


def portable_size(order: Order) -> int:
    """Size of the pickled order in bytes; 0 if it cannot be pickled, such as a lambda or a nested function."""
    try:
        return len(pickle.dumps(order))
    except Exception:
        return 0


class DrawingProcess:
    """A forked child process that draws one list of orders at a time, until its pipe is closed.

    Forking gives it the imported modules without importing them again. The child uses no device and no lock of another
    thread. It exits without clean-up when the pipe is closed, also if the parent process dies.

    Attributes:
        orders: the orders that it is drawing; empty if it is idle.

    Raises:
        OSError: the system cannot create another process or pipe.
    """

    def __init__(self) -> None:
        reap()
        self.orders: list[Order] = []
        self._pipe, child_end = Pipe()
        set_timeout(self._pipe, PATIENCE_SECONDS)
        with warnings.catch_warnings(), child_end:
            # Python 3.12 warns about a fork in a process with threads; the class docstring says why this one is safe.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                self.pid = os.fork()
            except OSError:
                self._pipe.close()
                raise
            if self.pid == 0:
                try:
                    self._pipe.close()
                    _serve(child_end)
                finally:
                    os._exit(0)

    def send(self, orders: list[Order]) -> bool:
        """Start drawing these orders; returns False if the child process has died.

        Each order must have a `portable_size` above 0, and earlier orders must have been collected.
        """
        try:
            self._pipe.send_bytes(pickle.dumps(orders))
        except OSError:
            self.end()
            return False
        self.orders = orders
        return True

    @property
    def ready(self) -> bool:
        """Whether `collect` returns without waiting."""
        return self._pipe.closed or self._pipe.poll()

    def collect(self) -> list[Drawn]:
        """Wait for the pictures of the orders that were sent.

        If the child has died or takes longer than `PATIENCE_SECONDS`, it is ended and all its orders count as failed.
        """
        orders, self.orders = self.orders, []
        try:
            # Unpickling is safe here: only the child process can write to this pipe.
            return pickle.loads(self._pipe.recv_bytes())
        except BlockingIOError:
            reason = "its process took too long"
        except (EOFError, OSError, pickle.UnpicklingError):
            reason = "its process ended early"
        self.end()
        return [Drawn(order.tag, order.step, b"", reason) for order in orders]

    def end(self) -> None:
        """Kill the child process without waiting for its exit, which would take as long as drawing a picture."""
        if not self._pipe.closed:
            self._pipe.close()
            # SIGKILL, because a process stopped by SIGSTOP would not notice that its pipe is closed.
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            _ENDING.append(self.pid)


def set_timeout(pipe: Connection, seconds: float) -> None:
    """Make reads and writes on this end raise BlockingIOError if the other end does not respond for ``seconds``."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            end.setsockopt(socket.SOL_SOCKET, direction, limit)


_ENDING: list[int] = []
"""Process ids of children that were killed and not yet waited for."""


def reap() -> None:
    """Wait for the killed children that have exited, so that they do not remain as zombies; does not block."""
    for pid in [*_ENDING]:
        try:
            ended = os.waitpid(pid, os.WNOHANG) != (0, 0)
        except ChildProcessError:
            # Other code has waited for it.
            ended = True
        if ended:
            _ENDING.remove(pid)


def _serve(pipe: Connection) -> None:
    """Main loop of the child process: draw lists of orders from the pipe until it is closed."""
    # Garbage collection would write to memory pages shared with the parent, and so copy them.
    gc.disable()
    # A signal may be sent to all processes of a run, but its handlers are for the parent; the child ends with the pipe.
    for number in stopping_signals():
        signal.signal(number, signal.SIG_IGN)
    # Training has priority if cores are scarce; SCHED_BATCH keeps the child from preempting it when orders arrive.
    with suppress(OSError):
        os.nice(5)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(pickle.dumps(draw(pickle.loads(pipe.recv_bytes()))))
