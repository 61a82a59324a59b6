"""Draws pictures beside the training and hands them to the dashboard and to the run's ``figures/``.

A figure takes matplotlib longer to draw than the default model takes for fifty steps. So where the system can fork, the
pictures are drawn by a forked process on another core; elsewhere, and where there is no other core to use, they are
drawn in place. Either way each is drawn once and shared by TensorBoard and the PNG file.
"""

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback
from matplotlib.figure import Figure

from poslab.errors import StoppedError
from poslab.pictures import drawing
from poslab.pictures.drawing import DrawingProcess, Drawn, Order, draw, portable_size
from poslab.runs.folder import RunFolder
from poslab.system.files import write_atomically
from poslab.system.threads import allowed_threads

log = logging.getLogger(__name__)


class Gallery(Callback):
    """Collects orders from the diagnostics that ran before it and sees that they are drawn and shown.

    Args:
        in_background: draw in a forked process; False draws in place; None: in a process where the system can fork and
            this one may use more than one core (a fork costs as much as a few pictures).
        only_ends: of each tag, draw the pictures of the first look and the last one; of those between, none. Pictures
            take a small model longer than its training does, and in a sweep hardly anyone looks at those between.
        folder, loggers: where the pictures go; None: the Trainer's.
        beyond_fit: whoever runs the Trainer calls `close_gallery` when it has ended well, and may do other things until
            then; else the last pictures are waited for before ``fit`` returns.
    """

    def __init__(
        self,
        in_background: bool | None = None,
        only_ends: bool = False,
        folder: RunFolder | None = None,
        loggers: Sequence[Any] | None = None,
        beyond_fit: bool = False,
    ) -> None:
        self.in_background = drawing.CAN_FORK and allowed_threads() > 1 if in_background is None else in_background
        self.only_ends = only_ends
        self.folder = folder
        self.loggers = loggers
        self.beyond_fit = beyond_fit
        self.owed: set[str] = set()
        """Tags of pictures that a run which was stopped here had ordered and not shown; to be ordered again."""
        self._owed_step = 0
        self._begun = False
        self._orders: list[Order] = []
        self._last_orders: list[Order] = []
        self._process: DrawingProcess | None = None
        self._warned: set[str] = set()

    def order(self, tag: str, step: int, make: Callable[[], Figure]) -> None:
        """Ask for a picture; ``make`` is called later and must hold its own arrays.

        One with a `portable_size` (a partial of a module's function, say) may be drawn beside the training.
        """
        self._orders.append(Order(tag, step, make))

    def state_dict(self) -> dict[str, Any]:
        """What has been ordered and not shown: a run that is killed and goes on from here draws it then."""
        begun = [*self._last_orders, *([] if self._process is None else self._process.orders)]
        owed = [*begun, *self._orders]
        return {
            # The first pictures are shown whenever they are ordered, later ones may be held back.
            "begun": self._begun and not begun,
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
        over = trainer.global_step == getattr(pl_module, "total_steps", None)
        self._start(trainer, trained=over)

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._start(trainer, trained=True, last=True)

    def on_fit_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.owed.clear()
        self.on_train_end(trainer, pl_module)

    def teardown(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        if not self.beyond_fit:
            self.close(trainer)

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        if isinstance(exception, StoppedError) and exception.at_once:
            if self._process is not None:
                self._process.end()
            return
        self.on_train_end(trainer, pl_module)
        self.close(trainer)

    def finish(self, trainer: lightning.Trainer, before: int | None = None) -> None:
        """Wait for the process that is drawing, if any, and show what it drew; if given, only pictures before a step.

        Args:
            trainer: of the run.
            before: a step.
        """
        process = self._process
        if process is not None and any(before is None or order.step < before for order in process.orders):
            self._show(trainer, process.collect())

    def finish_earlier(self, trainer: lightning.Trainer) -> None:
        """Show the pictures of earlier steps: a run that resumes from a checkpoint of this step could not draw them."""
        self.finish(trainer, before=trainer.global_step)

    def close(self, trainer: lightning.Trainer) -> None:
        """Have the last pictures drawn and shown: this process draws too, for it has nothing else to do."""
        try:
            self._draw_last(trainer)
        finally:
            if self._process is not None:
                self._process.end()
                self._process = None

    def _draw_last(self, trainer: lightning.Trainer) -> None:
        while self._last_orders:
            if self._process is None or not self._process.orders:
                if not self._send_last():
                    self._show(trainer, draw(self._last_orders))
                    self._last_orders = []
            elif self._process.ready:
                self.finish(trainer)
            else:
                self._show(trainer, draw([self._last_orders.pop()]))
        self.finish(trainer)

    def _start(self, trainer: lightning.Trainer, trained: bool = False, last: bool = False) -> None:
        """Have drawn what was ordered; one look's pictures at a time, so that training keeps its core.

        Args:
            trainer: of the run.
            trained: there is no training left; `close` sees to the pictures.
            last: nor will there be more orders.
        """
        if not self._orders:
            return
        if self.only_ends and self._begun and not last:
            self._orders = list({order.tag: order for order in self._orders}.values())
            return
        self._begun = True
        orders, self._orders = self._orders, []
        self.finish(trainer)
        sized = [(portable_size(order) if self.in_background else 0, order) for order in orders]
        here = [order for size, order in sized if not size]
        if trained:
            # What holds most takes longest, and goes first.
            sized.sort(key=lambda one: one[0], reverse=True)
            self._last_orders += [order for size, order in sized if size]
            self._send_last()
        else:
            there = [order for size, order in sized if size]
            if not self._send(there):
                here += there
        self._show(trainer, draw(here))

    def _send_last(self) -> bool:
        # More than one where there are many: when it is done, this process is in the middle of one.
        lot = self._last_orders[: max(1, len(self._last_orders) // 3)]
        if not self._send(lot):
            return False
        del self._last_orders[: len(lot)]
        return True

    def _send(self, orders: list[Order]) -> bool:
        """Have these drawn beside the training, by the process there is or by a new one; False where that cannot be."""
        if not orders:
            return False
        if self._process is not None and self._process.send(orders):
            return True
        try:
            self._process = DrawingProcess()
        except OSError as error:
            log.debug("no process draws pictures (%s)", error)
            self._process = None
            return False
        return self._process.send(orders)

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


def close_gallery(trainer: lightning.Trainer) -> None:
    """Wait for the last pictures of a run, which are drawn while it ends."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Gallery):
            callback.close(trainer)


def showing(loggers: Sequence[Any], name: str) -> Iterator[Callable[..., None]]:
    """The method of each logger that has it: a logger that cannot show a picture or a text goes without."""
    for logger in loggers:
        method = getattr(logger, name, None)
        if method is not None:
            yield method
