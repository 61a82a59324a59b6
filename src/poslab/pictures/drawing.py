"""A process beside the training that draws pictures, so that training does not wait for matplotlib."""

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

# macOS has fork too, but its system libraries do not survive one.
CAN_FORK = sys.platform.startswith("linux")
PATIENCE_SECONDS = 60.0
"""How long a look waits for the pictures of the one before, and the end of a run for the last; then they are given up,
never the run."""


class Order(NamedTuple):
    """A picture that is asked for: where it goes and how to draw it."""

    tag: str
    step: int
    draw: Callable[[], Figure]


class Drawn(NamedTuple):
    """A picture that is done, or the reason why not."""

    tag: str
    step: int
    png: bytes
    error: str | None


def draw(orders: list[Order]) -> list[Drawn]:
    """Draw each order; one that fails does not keep the others from being drawn."""
    done = []
    for tag, step, make in orders:
        try:
            done.append(Drawn(tag, step, to_png(make()), None))
        except Exception:
            done.append(Drawn(tag, step, b"", traceback.format_exc()))
    return done


def portable_size(order: Order) -> int:
    """Bytes that tell another process what to draw; 0 where none do, of a lambda or a function within a function."""
    try:
        return len(pickle.dumps(order))
    except Exception:
        return 0


class DrawingProcess:
    """A forked process that draws what it is sent, one lot of orders at a time, until it is told that no more comes.

    It shares this process's memory as it was when it was forked, so that nothing is imported again. It touches no
    device and no lock of another thread: it draws, answers and ends without clean-up; also when this process dies.

    Attributes:
        orders: what it is drawing; empty while it has nothing to do.

    Raises:
        OSError: the system has no process or pipe left.
    """

    def __init__(self) -> None:
        reap()
        self.orders: list[Order] = []
        self._pipe, there = Pipe()
        give_up_after(self._pipe, PATIENCE_SECONDS)
        with warnings.catch_warnings(), there:
            # Python 3.12 warns of every fork beside a thread; see above for why this one may.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                self.pid = os.fork()
            except OSError:
                self._pipe.close()
                raise
            if self.pid == 0:
                try:
                    self._pipe.close()
                    _serve(there)
                finally:
                    os._exit(0)

    def send(self, orders: list[Order]) -> bool:
        """Have these drawn, each of a `portable_size`; those before have been collected. False where it has died."""
        try:
            self._pipe.send_bytes(pickle.dumps(orders))
        except OSError:
            self.end()
            return False
        self.orders = orders
        return True

    @property
    def ready(self) -> bool:
        """Whether `collect` need not wait."""
        return self._pipe.closed or self._pipe.poll()

    def collect(self) -> list[Drawn]:
        """Wait for what it was sent; each of its orders as failed if it died or took too long, and then it is gone."""
        orders, self.orders = self.orders, []
        try:
            # It reads with the same patience; our own child's bytes, through a pipe that no other process can open.
            done: list[Drawn] = pickle.loads(self._pipe.recv_bytes())
            return done
        except BlockingIOError:
            reason = "its process took too long"
        except (EOFError, OSError, pickle.UnpicklingError):
            reason = "its process ended early"
        self.end()
        return [Drawn(order.tag, order.step, b"", reason) for order in orders]

    def end(self) -> None:
        """End it, whatever it is doing. Not waited for: giving its memory back takes it as long as a picture."""
        if not self._pipe.closed:
            self._pipe.close()
            # Also one that someone has stopped, which would not see that nobody wants pictures any more.
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            _ENDING.append(self.pid)


def give_up_after(pipe: Connection, seconds: float) -> None:
    """Have whoever reads or writes here fail with a BlockingIOError where the other end does nothing for so long."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            end.setsockopt(socket.SOL_SOCKET, direction, limit)


_ENDING: list[int] = []


def reap() -> None:
    """Let the system forget those processes that have ended."""
    for pid in [*_ENDING]:
        try:
            ended = os.waitpid(pid, os.WNOHANG) != (0, 0)
        except ChildProcessError:
            # Someone else has waited for it.
            ended = True
        if ended:
            _ENDING.remove(pid)


def _serve(pipe: Connection) -> None:
    # It ends by itself; looking for garbage would only touch, and so copy, the memory that it shares.
    gc.disable()
    # They may reach every process of a run, and none of the handlers is for this one, which ends by itself.
    for number in stopping_signals():
        signal.signal(number, signal.SIG_IGN)
    # Where cores are short, training goes first; and being sent something is no reason to take its core at once.
    with suppress(OSError):
        os.nice(5)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with suppress(EOFError, OSError):
        # Until nobody wants pictures any more.
        while True:
            pipe.send_bytes(pickle.dumps(draw(pickle.loads(pipe.recv_bytes()))))
