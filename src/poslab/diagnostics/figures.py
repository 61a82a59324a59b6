"""Figures without pyplot: nothing global, nothing left open, no display needed.

matplotlib spends most of a small figure on its ticks, its title and its layout: three quarters of a heat map. So axes
are placed in inches by hand, and labels are plain texts.
"""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

DPI = 100
TICK_SIZE = 7
LABEL_SIZE = 9


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of ``width`` by ``height`` inches on an Agg canvas."""
    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


class Plot:
    """A figure around one pair of axes of ``width`` by ``height`` inches, labelled with plain texts.

    Args:
        width: of the axes, inches.
        height: of the axes, inches.
        title: above the axes.
        xlabel: below the axes.
        ylabel: left of the axes.
        colour_bar: leave room for `colour_scale`.
    """

    LEFT, BOTTOM, TOP = 0.75, 0.6, 0.4

    def __init__(
        self, width: float, height: float, title: str, xlabel: str, ylabel: str, colour_bar: bool = False
    ) -> None:
        # A text may be longer than small axes are wide or tall; this is a little more than a letter takes.
        half_title, half_ylabel = 0.0375 * len(title), 0.0375 * len(ylabel)
        tall = max(height, 2 * half_ylabel)
        bottom = self.BOTTOM + (tall - height) / 2
        middle = self.LEFT + width / 2
        title_at = max(middle, half_title)
        right = self.LEFT + width + (0.95 if colour_bar else 0.25)
        self._whole = (max(right, title_at + half_title), self.BOTTOM + tall + self.TOP)
        self.figure = new_figure(*self._whole)
        self.axes = self._place(self.LEFT, bottom, width, height)
        self._bar = (self.LEFT + width + 0.12, bottom, 0.13, height)
        self._write(title_at, self.BOTTOM + tall + 0.15, title, va="bottom")
        self._write(max(middle, 0.0375 * len(xlabel)), 0.08, xlabel, va="bottom")
        self._write(0.08, self.BOTTOM + tall / 2, ylabel, ha="left", va="center", rotation=90)

    def xticks(self, at: Sequence[float] | np.ndarray, labels: Sequence[Any] | np.ndarray, rotation: float = 0) -> None:
        """Labels below the axes, at data coordinates."""
        place = self.axes.get_xaxis_transform()
        for x, label in zip(at, labels, strict=True):
            self.axes.text(
                x, -0.05 / self._height(), str(label), transform=place, fontsize=TICK_SIZE, ha="center", va="top",
                rotation=rotation,
            )  # fmt: skip

    def yticks(self, at: Sequence[float] | np.ndarray, labels: Sequence[Any] | np.ndarray) -> None:
        """Labels left of the axes, at data coordinates."""
        place = self.axes.get_yaxis_transform()
        for y, label in zip(at, labels, strict=True):
            self.axes.text(
                -0.05 / self._width(), y, str(label), transform=place, fontsize=TICK_SIZE, ha="right", va="center"
            )

    def colour_scale(self, colours: str | Colormap, low: float, high: float, label: str) -> None:
        """A colour bar from ``low`` to ``high`` at the right of the axes."""
        bar = self._place(*self._bar)
        bar.imshow(np.linspace(1, 0, 64)[:, None], cmap=colours, aspect="auto", extent=(0, 1, low, high))
        for value in np.linspace(low, high, 5):
            bar.text(1.4, value, f"{value:.2g}", fontsize=TICK_SIZE, va="center")
        self._write(self._bar[0] + 0.75, self._bar[1] + self._bar[3] / 2, label, ha="right", va="center", rotation=90)

    def _width(self) -> float:
        return self.axes.get_position().width * self._whole[0]

    def _height(self) -> float:
        return self.axes.get_position().height * self._whole[1]

    def _place(self, x: float, y: float, width: float, height: float) -> Any:
        whole_width, whole_height = self._whole
        axes = self.figure.add_axes((x / whole_width, y / whole_height, width / whole_width, height / whole_height))
        axes.set_xticks([])
        axes.set_yticks([])
        return axes

    def _write(self, x: float, y: float, text: str, ha: str = "center", **style: Any) -> None:
        self.figure.text(x / self._whole[0], y / self._whole[1], text, ha=ha, fontsize=LABEL_SIZE, **style)


def to_png(figure: Figure) -> bytes:
    """The figure as an encoded PNG. Nothing else knows the figure, so it is freed with its last reference."""
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    canvas.draw()
    buffer = io.BytesIO()
    # Straight from the canvas: savefig draws twice. Compression level 1: a dashboard's pictures are written far more
    # often than sent.
    Image.fromarray(np.asarray(canvas.buffer_rgba())).save(buffer, format="png", compress_level=1)
    return buffer.getvalue()


def to_array(tensor: Tensor) -> np.ndarray:
    """A float32 NumPy array on the host, from any device and dtype (NumPy knows no bfloat16).

    Always a copy: what a picture shows must not change while it waits to be drawn.
    """
    return tensor.detach().float().cpu().numpy().copy()


def message_figure(text: str) -> Figure:
    """A figure that only says something, where a plot would be empty."""
    figure = new_figure(5, 2)
    figure.text(0.5, 0.5, text, ha="center", va="center", fontsize=11)
    return figure


def sparse_ticks(n: int, most: int = 12) -> np.ndarray:
    """At most ``most`` evenly spaced indices out of ``n``, so that labels stay readable."""
    return np.arange(0, n, max(1, -(-n // most)))


def matrix_plot(
    values: np.ndarray,
    plot: Plot,
    colours: str | Colormap = "RdBu_r",
    limit: float | None = None,
    label: str = "",
) -> Figure:
    """Draw a matrix, white at zero and the same scale on both sides, with indices on both axes.

    Args:
        values: (rows, columns).
        plot: where, with room for a colour bar.
        colours: a diverging map.
        limit: value at the ends of the scale; the largest magnitude if not given.
        label: of the colour bar.
    """
    limit = limit or float(np.abs(values).max()) or 1.0
    plot.axes.imshow(
        values, cmap=colormaps.get_cmap(colours), vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest"
    )
    for n, write in zip(values.shape, (plot.yticks, plot.xticks), strict=True):
        ticks = sparse_ticks(n)
        write(ticks, ticks)
    plot.colour_scale(colours, -limit, limit, label)
    return plot.figure
