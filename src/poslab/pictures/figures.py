"""Figures without pyplot: no global state, no figures to close, no display needed.

For speed, Pillow writes all texts onto the image that matplotlib has drawn: texts and their layout take most of
matplotlib's time for a small figure. The contents of figures are drawn by ``plots.py``.
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
        at: coordinates of the anchor point, to which ``transform`` is applied.
        transform: maps coordinates to pixels; applied when the figure is drawn, with the limits of its axes then.
        text: one or several lines.
        size: font size in points.
        colour: a colour name of matplotlib.
        anchor: the point of the text that is placed ``at``, as in Pillow: l, m, r (left, middle, right), then a, m, d
            (top, middle, bottom).
        upright: rotate the text by 90 degrees counter-clockwise.
    """

    at: tuple[float, float]
    transform: Transform
    text: str
    size: float
    colour: str
    anchor: str
    upright: bool


class LabelledFigure(Figure):
    """A figure whose texts are written onto the image after matplotlib has drawn it.

    Attributes:
        labels: the texts.
    """

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
        """Add a text, with arguments as in `Label`; x and y are in inches from the lower left without ``transform``."""
        place = self.dpi_scale_trans if transform is None else transform
        self.labels.append(Label((float(x), float(y)), place, text, size, colour, anchor, upright))


def new_figure(width: float, height: float) -> LabelledFigure:
    """An empty figure of ``width`` by ``height`` inches on an Agg canvas."""
    figure = LabelledFigure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def to_png(figure: Figure) -> bytes:
    """Render a figure to PNG bytes."""
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    canvas.draw()
    # Read from the canvas, because savefig would draw the figure twice.
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    if isinstance(figure, LabelledFigure):
        write_labels(image, figure.labels)
    buffer = io.BytesIO()
    # Fast compression: most pictures are written and never downloaded.
    image.save(buffer, format="png", compress_level=1)
    return buffer.getvalue()


def write_labels(image: Image.Image, labels: Sequence[Label]) -> None:
    """Write all labels onto the image, in place."""
    canvas = ImageDraw.Draw(image)
    for label in labels:
        x, y = label.transform.transform(label.at)
        place, font, colour = (x, image.height - y), font_of_size(label.size), to_hex(label.colour)
        if not label.upright:
            canvas.text(place, label.text, fill=colour, font=font, anchor=label.anchor, align="center")
            continue
        # Write the text into a mask, rotate the mask, and paste the colour through it at the anchor point.
        ascent, descent = font.getmetrics()
        mask = Image.new("L", (math.ceil(font.getlength(label.text)), ascent + descent))
        ImageDraw.Draw(mask).text((0, ascent), label.text, fill=255, font=font, anchor="ls")
        rotated = mask.transpose(Image.Transpose.ROTATE_90)
        corner = (
            round(place[0] - {"l": 0.0, "m": 0.5, "r": 1.0}[label.anchor[0]] * rotated.width),
            round(place[1] - {"a": 0.0, "m": 0.5, "d": 1.0}[label.anchor[1]] * rotated.height),
        )
        image.paste(colour, (*corner, corner[0] + rotated.width, corner[1] + rotated.height), rotated)


@lru_cache(maxsize=32)
def font_of_size(points: float) -> ImageFont.FreeTypeFont:
    """The default font of matplotlib (DejaVu Sans) in a size in points."""
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(path), points * DPI / 72, layout_engine=ImageFont.Layout.BASIC)


def to_array(tensor: Tensor) -> np.ndarray:
    """Copy a tensor from any device and dtype to a float32 NumPy array of the same shape.

    It is always a copy, so that the values cannot change before the picture is drawn. NumPy has no bfloat16.
    """
    return tensor.detach().float().cpu().numpy().copy()


def message_figure(text: str) -> Figure:
    """A figure that shows only a text, for use instead of an empty plot."""
    figure = new_figure(5, 2)
    figure.write(2.5, 1, text, size=11)
    return figure
