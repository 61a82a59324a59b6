"""A gallery with a logger that notes what it is shown, and drawing functions that are good, bad or slow."""

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lightning
import pytest
from matplotlib.figure import Figure

from poslab.pictures.figures import message_figure
from poslab.pictures.gallery import Gallery
from support.processes import needs_fork

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
        self.gallery.close(self.trainer)

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.folder / "figures").glob("*")}


def good(text: str = "good") -> Callable[[], Figure]:
    return partial(message_figure, text)


def bad() -> Figure:
    raise RuntimeError("cannot draw this")


def slow(seconds: float, sign: Path | None = None) -> Figure:
    if sign is not None:
        sign.touch()
    time.sleep(seconds)
    return message_figure("slow")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
