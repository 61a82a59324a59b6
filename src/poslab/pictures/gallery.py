"""Draw the pictures of the diagnostics and pass them to the loggers and to the run's ``figures/``.

Drawing a figure takes longer than many training steps of a small model. If the system can fork and a second core is
available, a forked process draws the pictures; otherwise this process does. Each picture is drawn once; TensorBoard and
the PNG file share it.
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
    """Callback that draws the pictures ordered by diagnostics; it must come after them in the list of callbacks.

    Call `close_gallery` after ``fit``: other work can be done while the last pictures are drawn.

    Args:
        in_background: True draws in a forked process, False in this one. None: in a forked process if the system can
            fork and this process may use more than one core.
        only_ends: draw only the first and the last picture of each tag. Used in sweeps, where drawing all pictures
            would take longer than training a small model.
        folder: run folder for the PNG files; None: the Trainer's ``default_root_dir``.
        loggers: loggers that get the pictures; None: those of the Trainer.
    """

    def __init__(
        self,
        in_background: bool | None = None,
        only_ends: bool = False,
        folder: RunFolder | None = None,
        loggers: Sequence[Any] | None = None,
    ) -> None:
        self.in_background = drawing.CAN_FORK and allowed_threads() > 1 if in_background is None else in_background
        self.only_ends = only_ends
        self.folder = folder
        self.loggers = loggers
        self.owed: set[str] = set()
        """Tags of pictures that were ordered but not shown when the checkpoint was saved; they are ordered again."""
        self._owed_step = 0
        self._begun = False
        self._orders: list[Order] = []
        self._last_orders: list[Order] = []
        self._process: DrawingProcess | None = None
        self._warned: set[str] = set()

    def order(self, tag: str, step: int, make: Callable[[], Figure]) -> None:
        """Order a picture. ``make`` is called later, so it must own the arrays that it draws.

        The forked process can draw it if it can be pickled, for example a partial of a module-level function; a lambda
        is drawn in this process, and training waits for it.
        """
        self._orders.append(Order(tag, step, make))

    def state_dict(self) -> dict[str, Any]:
        """The pictures that were ordered but not shown yet: a run that resumes from here orders them again."""
        drawing_now = [*self._last_orders, *([] if self._process is None else self._process.orders)]
        owed = [*drawing_now, *self._orders]
        return {
            # With only_ends, orders are held back once this is True; those that are being drawn now must not be.
            "begun": self._begun and not drawing_now,
            "owed": sorted({order.tag for order in owed}),
            "step": max((order.step for order in owed), default=0),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._begun = state_dict["begun"]
        self.owed, self._owed_step = set(state_dict["owed"]), state_dict["step"]

    def owes(self, step: int) -> bool:
        """Whether pictures of this step have to be ordered again after a resume."""
        return bool(self.owed) and self._owed_step == step

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.owed.clear()
        self._start(trainer)

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        trained = trainer.global_step == getattr(pl_module, "total_steps", None)
        self._start(trainer, trained=trained)

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._start(trainer, trained=True, last=True)

    def on_fit_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self.owed.clear()
        self.on_train_end(trainer, pl_module)

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
        """Wait for the pictures that the forked process is drawing, if any, and show them.

        Args:
            trainer: the run's Trainer.
            before: do this only if one of the pictures is of an earlier step than this; None: always.
        """
        process = self._process
        if process is not None and any(before is None or order.step < before for order in process.orders):
            self._show(trainer, process.collect())

    def finish_earlier(self, trainer: lightning.Trainer) -> None:
        """Show the pictures of earlier steps; a run that resumes from a checkpoint of this step cannot draw them."""
        self.finish(trainer, before=trainer.global_step)

    def close(self, trainer: lightning.Trainer) -> None:
        """Draw and show the remaining pictures, in both processes, then end the forked one."""
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
        """Start to draw the ordered pictures, after those of the validation before have been shown.

        Args:
            trainer: the run's Trainer.
            trained: training is complete, so `close` will wait for the pictures.
            last: training is complete and no more orders will come.
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
        in_place = [order for size, order in sized if not size]
        if trained:
            # The largest first: they take longest to draw.
            sized.sort(key=lambda one: one[0], reverse=True)
            self._last_orders += [order for size, order in sized if size]
            self._send_last()
        else:
            portable = [order for size, order in sized if size]
            if not self._send(portable):
                in_place += portable
        self._show(trainer, draw(in_place))

    def _send_last(self) -> bool:
        # A third of the orders at once: this process is drawing too and cannot send single orders without delay.
        orders = self._last_orders[: max(1, len(self._last_orders) // 3)]
        if not self._send(orders):
            return False
        del self._last_orders[: len(orders)]
        return True

    def _send(self, orders: list[Order]) -> bool:
        """Send orders to the forked process, or to a new one if there is none; returns False if that is impossible."""
        if not orders:
            return False
        if self._process is not None and self._process.send(orders):
            return True
        try:
            self._process = DrawingProcess()
        except OSError as error:
            log.debug("cannot start a process that draws pictures (%s)", error)
            self._process = None
            return False
        return self._process.send(orders)

    def _show(self, trainer: lightning.Trainer, pictures: list[Drawn]) -> None:
        folder = self.folder or RunFolder(Path(trainer.default_root_dir))
        loggers = trainer.loggers if self.loggers is None else self.loggers
        for tag, step, png, error in pictures:
            if error is None:
                log_calls = [partial(log_png, tag, png, step) for log_png in showing(loggers, "log_png")]
                file = folder.figures / f"{tag.replace('/', '_')}.png"
                for write in (partial(write_atomically, file, png), *log_calls):
                    try:
                        write()
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
    """Draw and show the last pictures of a run."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Gallery):
            callback.close(trainer)


def showing(loggers: Sequence[Any], name: str) -> Iterator[Callable[..., None]]:
    """Yield the method ``name`` of each logger that has it; loggers that cannot show pictures or texts are skipped."""
    for logger in loggers:
        method = getattr(logger, name, None)
        if method is not None:
            yield method
