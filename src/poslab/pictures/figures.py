"""Figures without pyplot: nothing global, nothing left open, no display needed.

matplotlib spends most of a small figure on its texts and their layout, so all that is written is written by Pillow onto
the picture that matplotlib drew. What is drawn on a figure is in ``plots.py``.
"""

import io
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
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


class Map(NamedTuple):
    """A matrix on a figure: its values, those at the ends of its colour scale; `MapPlot.map` says the rest."""

    values: np.ndarray
    low: float
    high: float
    at: tuple[float, float]
    cell: float


class LabelledFigure(Figure):
    """A figure whose texts are written after it has been drawn.

    Attributes:
        labels: its texts.
        maps: the matrices that it shows by colour.
        data: of a figure with maps, from their coordinates to pixels.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.labels: list[Label] = []
        self.maps: list[Map] = []
        self.data: Transform | None = None

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
