"""Figures without pyplot: nothing global, nothing left open, no display needed.

matplotlib spends most of a small figure on its ticks, its texts and its layout: three quarters of a heat map. So axes
are placed in inches by hand, and all that is written is written by Pillow onto the picture that matplotlib drew.
"""

import io
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, to_hex
from matplotlib.figure import Figure
from matplotlib.transforms import Transform
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

DPI = 100
TICK_SIZE = 7
LABEL_SIZE = 9


class Label(NamedTuple):
    """A text on a figure.

    Attributes:
        at: coordinates, in what ``transform`` takes to pixels.
        transform: asked when the figure is drawn, as the limits of its axes are then.
        text: one line or several.
        size: of the letters, points.
        colour: as matplotlib names them.
        anchor: the point of the text that stands ``at``, as Pillow names it: l, m, r across and a, m, d down.
        upright: turned to the left, to be read from below.
    """

    at: tuple[float, float]
    transform: Transform
    text: str
    size: float
    colour: str
    anchor: str
    upright: bool


class LabelledFigure(Figure):
    """A figure whose texts are written after it has been drawn."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.labels: list[Label] = []

    def write(
        self,
        x: float,
        y: float,
        text: str,
        transform: Transform | None = None,
        size: float = LABEL_SIZE,
        colour: str = "black",
        anchor: str = "mm",
        upright: bool = False,
    ) -> None:
        """Write a text; without a ``transform`` at a place in inches from the lower left corner. See `Label`."""
        place = self.dpi_scale_trans if transform is None else transform
        self.labels.append(Label((float(x), float(y)), place, text, size, colour, anchor, upright))


def new_figure(width: float, height: float) -> LabelledFigure:
    """An empty figure of ``width`` by ``height`` inches on an Agg canvas."""
    figure = LabelledFigure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


class Plot:
    """A figure around one pair of axes of ``width`` by ``height`` inches.

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
        whole_width, whole_height = max(right, title_at + half_title), self.BOTTOM + tall + self.TOP
        self.figure = new_figure(whole_width, whole_height)
        self.axes = self.figure.add_axes(
            (self.LEFT / whole_width, bottom / whole_height, width / whole_width, height / whole_height)
        )
        self.axes.set_xticks([])
        self.axes.set_yticks([])
        self._size = (width, height)
        self._bar = (self.LEFT + width + 0.12, bottom, 0.13, height)
        self.figure.write(title_at, self.BOTTOM + tall + 0.19, title, anchor="md")
        self.figure.write(max(middle, 0.0375 * len(xlabel)), 0.08, xlabel, anchor="md")
        self.figure.write(0.08, self.BOTTOM + tall / 2, ylabel, anchor="lm", upright=True)

    def write(self, x: float, y: float, text: str, size: float = TICK_SIZE, **style: Any) -> None:
        """Write a text at data coordinates; ``style`` as `LabelledFigure.write` takes it."""
        self.figure.write(x, y, text, self.axes.transData, size, **style)

    def xticks(
        self, at: Sequence[float] | np.ndarray, labels: Sequence[Any] | np.ndarray, upright: bool = False
    ) -> None:
        """Labels below the axes, at data coordinates."""
        place = self.axes.get_xaxis_transform()
        below = -0.03 / self._size[1]
        for x, label in zip(at, labels, strict=True):
            self.figure.write(float(x), below, str(label), place, TICK_SIZE, anchor="ma", upright=upright)

    def yticks(self, at: Sequence[float] | np.ndarray, labels: Sequence[Any] | np.ndarray) -> None:
        """Labels left of the axes, at data coordinates."""
        place = self.axes.get_yaxis_transform()
        before = -0.05 / self._size[0]
        for y, label in zip(at, labels, strict=True):
            self.figure.write(before, float(y), str(label), place, TICK_SIZE, anchor="rm")

    def colour_scale(self, colours: str | Colormap, low: float, high: float, label: str) -> None:
        """A colour bar from ``low`` to ``high`` at the right of the axes."""
        x, y, width, height = self._bar
        pixels = [max(1, round(inches * DPI)) for inches in (width, height)]
        shades = colormaps.get_cmap(colours)(np.linspace(1, 0, pixels[1]))
        # Straight onto the canvas: a second pair of axes costs as much as the first.
        self.figure.figimage(np.repeat(shades[:, None], pixels[0], axis=1), round(x * DPI), round(y * DPI))
        for share in np.linspace(0, 1, 5):
            value = f"{low + share * (high - low):.2g}"
            self.figure.write(x + 1.4 * width, float(y + share * height), value, size=TICK_SIZE, anchor="lm")
        self.figure.write(x + 0.75, y + height / 2, label, anchor="rm", upright=True)


def to_png(figure: Figure) -> bytes:
    """The figure as an encoded PNG. Nothing else knows the figure, so it is freed with its last reference."""
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    canvas.draw()
    # Straight from the canvas: savefig draws twice.
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    if isinstance(figure, LabelledFigure):
        write_labels(image, figure.labels)
    buffer = io.BytesIO()
    # Compression level 1: a dashboard's pictures are written far more often than sent.
    image.save(buffer, format="png", compress_level=1)
    return buffer.getvalue()


def write_labels(image: Image.Image, labels: Sequence[Label]) -> None:
    """Write each label onto the image, in place."""
    canvas = ImageDraw.Draw(image)
    for label in labels:
        x, y = label.transform.transform(label.at)
        place, font, colour = (x, image.height - y), letters(label.size), to_hex(label.colour)
        if not label.upright:
            canvas.text(place, label.text, fill=colour, font=font, anchor=label.anchor, align="center")
            continue
        # Written on paper of its own, turned, and laid where its own anchor point comes to stand.
        ascent, descent = font.getmetrics()
        paper = Image.new("L", (math.ceil(font.getlength(label.text)), ascent + descent))
        ImageDraw.Draw(paper).text((0, ascent), label.text, fill=255, font=font, anchor="ls")
        turned = paper.transpose(Image.Transpose.ROTATE_90)
        corner = (
            round(place[0] - {"l": 0.0, "m": 0.5, "r": 1.0}[label.anchor[0]] * turned.width),
            round(place[1] - {"a": 0.0, "m": 0.5, "d": 1.0}[label.anchor[1]] * turned.height),
        )
        image.paste(colour, (*corner, corner[0] + turned.width, corner[1] + turned.height), turned)


@lru_cache(maxsize=32)
def letters(points: float) -> ImageFont.FreeTypeFont:
    """matplotlib's own font, in a size."""
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(path), points * DPI / 72, layout_engine=ImageFont.Layout.BASIC)


def to_array(tensor: Tensor) -> np.ndarray:
    """A float32 NumPy array on the host, from any device and dtype (NumPy knows no bfloat16).

    Always a copy: what a picture shows must not change while it waits to be drawn.
    """
    return tensor.detach().float().cpu().numpy().copy()


def message_figure(text: str) -> Figure:
    """A figure that only says something, where a plot would be empty."""
    figure = new_figure(5, 2)
    figure.write(2.5, 1, text, size=11)
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
