"""Draws pictures beside the training and hands them to the dashboard and to the run's ``figures/``.

A figure takes matplotlib longer to draw than the default model takes for fifty steps. So where the system can fork, the
pictures of one look are drawn by a forked child on another core; elsewhere, and where there is no other core to use,
they are drawn in place. Either way each is drawn once and shared by TensorBoard and the PNG file.
"""

import gc
import logging
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import lightning
from lightning.pytorch.callbacks import Callback
from matplotlib.figure import Figure

from poslab.diagnostics.figures import to_png
from poslab.module import TrainingModule
from poslab.results import RunFolder, write_atomically
from poslab.signals import StoppedError, stopping_signals
from poslab.threads import allowed_threads

log = logging.getLogger(__name__)

# macOS has fork too, but its system libraries do not survive one.
CAN_FORK = sys.platform.startswith("linux")
PATIENCE_SECONDS = 60.0
"""How long the end of a run waits for a child; then its pictures are given up, never the run."""


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


@dataclass
class Child:
    """A forked process and the unnamed file it writes its pictures to."""

    pid: int
    file: IO[bytes]
    orders: list[Order]


def draw(orders: list[Order]) -> list[Drawn]:
    """Draw each order; one that fails does not keep the others from being drawn."""
    done = []
    for tag, step, make in orders:
        try:
            done.append(Drawn(tag, step, to_png(make()), None))
        except Exception:
            done.append(Drawn(tag, step, b"", traceback.format_exc()))
    return done


class Gallery(Callback):
    """Collects orders from the diagnostics that ran before it and sees that they are drawn and shown.

    Args:
        in_background: draw in a forked child; False draws in place; None: in a child where the system can fork and this
            process may use more than one core (a fork costs as much as a few pictures).
        only_ends: of each tag, draw the pictures of the first look and the last one; of those between, none. Pictures
            take a small model longer than its training does, and in a sweep hardly anyone looks at those between.
        folder, loggers: where the pictures go; None: the Trainer's.
    """

    def __init__(
        self,
        in_background: bool | None = None,
        only_ends: bool = False,
        folder: RunFolder | None = None,
        loggers: Sequence[Any] | None = None,
    ) -> None:
        self.in_background = CAN_FORK and allowed_threads() > 1 if in_background is None else in_background
        self.only_ends = only_ends
        self.folder = folder
        self.loggers = loggers
        self.owed: set[str] = set()
        """Tags of pictures that a run which was stopped here had ordered and not shown; to be ordered again."""
        self._owed_step = 0
        self._begun = False
        self._orders: list[Order] = []
        self._child: Child | None = None
        self._warned: set[str] = set()

    def order(self, tag: str, step: int, make: Callable[[], Figure]) -> None:
        """Ask for a picture; ``make`` is called later and must hold its own arrays."""
        self._orders.append(Order(tag, step, make))

    def state_dict(self) -> dict[str, Any]:
        """What has been ordered and not shown: a run that is killed and goes on from here draws it then."""
        drawing = [] if self._child is None else self._child.orders
        owed = [*drawing, *self._orders]
        return {
            # The first pictures are shown whenever they are ordered, later ones may be held back.
            "begun": self._begun and not drawing,
            "owed": sorted({order.tag for order in owed}),
            "step": max((order.step for order in owed), default=0),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._begun = state_dict["begun"]
        self.owed, self._owed_step = set(state_dict["owed"]), state_dict["step"]

    def owes(self, step: int) -> bool:
        """Whether pictures of this step have to be ordered again."""
        return bool(self.owed) and self._owed_step == step

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.owed.clear()
        self._start(trainer)

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        over = isinstance(pl_module, TrainingModule) and trainer.global_step == pl_module.total_steps
        self._start(trainer, awaited=over)

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._start(trainer, last=True)
        self.finish(trainer)

    def on_fit_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.owed.clear()
        self.on_train_end(trainer, pl_module)

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        if isinstance(exception, StoppedError) and exception.at_once:
            self._give_up()
            return
        self._start(trainer, last=True)
        self.finish(trainer)

    def finish(self, trainer: lightning.Trainer, before: int | None = None) -> None:
        """Wait for the child that is drawing, if any, and show what it drew; if given, only pictures before a step."""
        if self._child is not None and (before is None or any(order.step < before for order in self._child.orders)):
            child, self._child = self._child, None
            self._show(trainer, await_drawing(child))

    def _give_up(self) -> None:
        """End the child that is drawing, if any."""
        if self._child is not None:
            child, self._child = self._child, None
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
            child.file.close()

    def _start(self, trainer: lightning.Trainer, last: bool = False, awaited: bool = False) -> None:
        """Send what was ordered to be drawn; one child at a time, so that training keeps its core.

        Args:
            trainer: of the run.
            last: there will be no more orders.
            awaited: there is no training left meanwhile, so that this process draws its half.
        """
        if not self._orders:
            return
        if self.only_ends and self._begun and not last:
            self._orders = list({order.tag: order for order in self._orders}.values())
            return
        self._begun = True
        orders, self._orders = self._orders, []
        self.finish(trainer)
        if not self.in_background:
            self._show(trainer, draw(orders))
            return
        there, here = (orders[::2], orders[1::2]) if awaited or last else (orders, [])
        try:
            self._child = fork_drawing(there)
        except OSError as error:
            log.debug("no child could be forked (%s); drawing in place", error)
            here = orders
        self._show(trainer, draw(here))

    def _show(self, trainer: lightning.Trainer, pictures: list[Drawn]) -> None:
        folder = self.folder or RunFolder(Path(trainer.default_root_dir))
        loggers = trainer.loggers if self.loggers is None else self.loggers
        for tag, step, png, error in pictures:
            if error is None:
                shows = [partial(show, tag, png, step) for show in showing(loggers, "log_png")]
                file = folder.figures / f"{tag.replace('/', '_')}.png"
                for hand_over in (partial(write_atomically, file, png), *shows):
                    try:
                        hand_over()
                    except Exception:
                        error = traceback.format_exc()
            if error is not None:
                self._warn(tag, step, error)

    def _warn(self, tag: str, step: int, error: str) -> None:
        if tag not in self._warned:
            self._warned.add(tag)
            reason = error.strip().splitlines()[-1]
            log.warning("the picture %s failed at step %d, training goes on: %s", tag, step, reason)
        log.debug("picture %s failed at step %d\n%s", tag, step, error)


def showing(loggers: Sequence[Any], name: str) -> Iterator[Callable[..., None]]:
    """The method of each logger that has it: a logger that cannot show a picture or a text goes without."""
    for logger in loggers:
        method = getattr(logger, name, None)
        if method is not None:
            yield method


def fork_drawing(orders: list[Order]) -> Child:
    """Draw in a child that shares this process's memory as it is now, so that nothing is copied or imported again.

    The child touches no device and no lock of another thread: it draws, writes one file and ends without clean-up.

    Raises:
        OSError: the system has no process or file left.
    """
    # Open until the child has been read; a context would close it in between.
    file = tempfile.TemporaryFile()  # noqa: SIM115
    with warnings.catch_warnings():
        # Python 3.12 warns of every fork beside a thread; see above for why this one may.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            pid = os.fork()
        except OSError:
            file.close()
            raise
    if pid:
        return Child(pid, file, orders)
    try:
        # It ends by itself soon; looking for garbage would only touch, and so copy, the memory that it shares.
        gc.disable()
        # They may reach every process of a run, and none of the handlers is for this one, which ends by itself.
        for number in stopping_signals():
            signal.signal(number, signal.SIG_IGN)
        file.write(pickle.dumps(draw(orders)))
        file.flush()
    finally:
        os._exit(0)


def await_drawing(child: Child) -> list[Drawn]:
    """What the child drew; each of its orders as failed if it died or took too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    ended = 0
    while ended == 0 and time.monotonic() < deadline:
        try:
            ended, _ = os.waitpid(child.pid, os.WNOHANG)
        except ChildProcessError:
            ended = child.pid
        if ended == 0:
            time.sleep(0.002)
    if ended == 0:
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
    with child.file as file:
        file.seek(0)
        content = file.read()
    try:
        # Our own child's bytes, from an unnamed file that no other process can open.
        done: list[Drawn] = pickle.loads(content)
    except (pickle.UnpicklingError, EOFError):
        reason = "its process took too long" if ended == 0 else "its process ended early"
        return [Drawn(order.tag, order.step, b"", reason) for order in child.orders]
    return done
