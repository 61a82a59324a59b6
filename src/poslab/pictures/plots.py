"""Plots for diagnostics: curves on matplotlib's axes, and matrices as colour maps.

For speed, frames are placed in inches and ticks are written as plain texts; matplotlib's axes are created for curves
only.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.transforms import Bbox, BboxTransform, BboxTransformTo, Transform, blended_transform_factory

from poslab.pictures.figures import DPI, TICK_SIZE, new_figure


class Pixels(Artist):
    """An image that is drawn pixel by pixel; matplotlib's own images are resampled.

    Args:
        colours: RGBA values from 0 to 255, (rows, columns, 4), the first row at the bottom.
        left, bottom: position in pixels from the figure's lower left corner.
    """

    def __init__(self, colours: np.ndarray, left: int, bottom: int) -> None:
        super().__init__()
        self._colours = np.ascontiguousarray(colours)
        self._place = left, bottom

    def draw(self, renderer: RendererBase) -> None:
        renderer.draw_image(renderer.new_gc(), *self._place, self._colours)


class Plot:
    """A figure with one frame of ``width`` by ``height`` inches; `axes` are matplotlib's axes in this frame.

    Args:
        width: width of the frame, in inches.
        height: height of the frame, in inches.
        title: text above the frame.
        xlabel: text below the frame.
        ylabel: text left of the frame.
        colour_bar: leave space for `colour_scale`.
    """

    LEFT, BOTTOM, TOP = 0.75, 0.6, 0.4

    def __init__(
        self, width: float, height: float, title: str, xlabel: str, ylabel: str, colour_bar: bool = False
    ) -> None:
        # A text may be longer than the frame: assume 0.075 inches per character, a little more than they need.
        half_title, half_ylabel = 0.0375 * len(title), 0.0375 * len(ylabel)
        tall = max(height, 2 * half_ylabel)
        bottom = self.BOTTOM + (tall - height) / 2
        middle = self.LEFT + width / 2
        title_at = max(middle, half_title)
        right = self.LEFT + width + (0.95 if colour_bar else 0.25)
        self.figure = new_figure(max(right, title_at + half_title), self.BOTTOM + tall + self.TOP)
        self.frame = Bbox.from_bounds(self.LEFT, bottom, width, height)
        """The frame, in inches from the figure's lower left corner."""
        self.figure.write(title_at, self.BOTTOM + tall + 0.19, title, anchor="md")
        self.figure.write(max(middle, 0.0375 * len(xlabel)), 0.08, xlabel, anchor="md")
        self.figure.write(0.08, self.BOTTOM + tall / 2, ylabel, anchor="lm", upright=True)

    @cached_property
    def axes(self) -> Axes:
        """matplotlib's axes in the frame, without ticks."""
        width, height = self.figure.get_size_inches()
        (x, y, across, up) = self.frame.bounds
        axes = self.figure.add_axes((x / width, y / height, across / width, up / height))
        axes.set_xticks([])
        axes.set_yticks([])
        return axes

    @property
    def data(self) -> Transform:
        """Transform from data coordinates to pixels."""
        return self.axes.transData

    def write(self, x: float, y: float, text: str, size: float = TICK_SIZE, **style: Any) -> None:
        """Write a text at data coordinates; ``style`` is passed to `LabelledFigure.write`."""
        self.figure.write(x, y, text, self.data, size, **style)

    def xticks(
        self, at: Sequence[float] | np.ndarray, labels: Sequence[Any] | np.ndarray, upright: bool = False
    ) -> None:
        """Write labels below the frame, at these data coordinates."""
        place = blended_transform_factory(self.data, self._share_of_frame())
        below = -0.03 / self.frame.height
        for x, label in zip(at, labels, strict=True):
            self.figure.write(float(x), below, str(label), place, TICK_SIZE, anchor="ma", upright=upright)

    def yticks(self, at: Sequence[float] | np.ndarray, labels: Sequence[Any] | np.ndarray) -> None:
        """Write labels left of the frame, at these data coordinates."""
        place = blended_transform_factory(self._share_of_frame(), self.data)
        before = -0.05 / self.frame.width
        for y, label in zip(at, labels, strict=True):
            self.figure.write(before, float(y), str(label), place, TICK_SIZE, anchor="rm")

    def colour_scale(self, colours: str | Colormap, low: float, high: float, label: str) -> None:
        """Draw a colour bar from ``low`` to ``high`` at the right of the frame."""
        x, y, width, height = self.frame.x1 + 0.12, self.frame.y0, 0.13, self.frame.height
        pixels = [max(1, round(inches * DPI)) for inches in (width, height)]
        shades = colormaps.get_cmap(colours)(np.linspace(0, 1, pixels[1]), bytes=True)
        self.figure.add_artist(Pixels(np.repeat(shades[:, None], pixels[0], axis=1), round(x * DPI), round(y * DPI)))
        for share in np.linspace(0, 1, 5):
            value = f"{low + share * (high - low):.2g}"
            self.figure.write(x + 1.4 * width, float(y + share * height), value, size=TICK_SIZE, anchor="lm")
        self.figure.write(x + 0.75, y + height / 2, label, anchor="rm", upright=True)

    def _share_of_frame(self) -> Transform:
        return BboxTransformTo(self.frame) + self.figure.dpi_scale_trans


class MapPlot(Plot):
    """A plot of matrices. Data coordinates are (column, row), at the centres of the cells, with row 0 at the top.

    Args:
        width, height, title, xlabel, ylabel, colour_bar: as in `Plot`.
        columns, rows: size of the frame in cells; it spans columns -0.5 to ``columns - 0.5``, and rows likewise.
        above: empty space above row 0, in rows.
        framed: draw the border of the frame.
    """

    def __init__(
        self,
        width: float,
        height: float,
        title: str,
        xlabel: str,
        ylabel: str,
        columns: float,
        rows: float,
        above: float = 0.0,
        colour_bar: bool = True,
        framed: bool = True,
    ) -> None:
        super().__init__(width, height, title, xlabel, ylabel, colour_bar)
        coordinates = Bbox([(-0.5, rows - 0.5), (columns - 0.5, -0.5 - above)])
        self._data = BboxTransform(coordinates, self.frame) + self.figure.dpi_scale_trans
        if framed:
            x, y, across, up = self.frame.bounds
            border = Rectangle((x, y), across, up, fill=False, linewidth=0.8, transform=self.figure.dpi_scale_trans)
            self.figure.add_artist(border)

    @property
    def data(self) -> Transform:
        return self._data

    def map(
        self,
        values: np.ndarray,
        colours: str | Colormap,
        low: float,
        high: float,
        at: tuple[float, float] = (0.0, 0.0),
        cell: float = 1.0,
    ) -> None:
        """Draw a matrix with each cell in the colour of its value; if cells are smaller than a pixel, some are skipped.

        Args:
            values: (rows, columns); masked or NaN cells are not drawn.
            colours: colour map from ``low`` to ``high``.
            low, high: values at the ends of the colour scale.
            at: (column, row) coordinates; the upper left corner of the matrix is half a unit before both.
            cell: side of a cell, in data coordinates.
        """
        self.paint(colormaps.get_cmap(colours)(Normalize(low, high)(values), bytes=True), at, cell)

    def paint(self, colours: np.ndarray, at: tuple[float, float] = (0.0, 0.0), cell: float = 1.0) -> None:
        """Draw a matrix of RGBA colours from 0 to 255, (rows, columns, 4); ``at`` and ``cell`` as in `map`."""
        n_rows, n_columns = colours.shape[:2]
        x, y = at[0] - 0.5, at[1] - 0.5
        (left, top), (right, bottom) = self.data.transform([(x, y), (x + cell * n_columns, y + cell * n_rows)])
        columns, first_x = _cells_of_pixels(left, right, n_columns)
        rows, first_y = _cells_of_pixels(bottom, top, n_rows)
        self.figure.add_artist(Pixels(colours[n_rows - 1 - rows][:, columns], first_x, first_y))

    def lines(self, segments: np.ndarray, colour: str, width: float) -> None:
        """Draw lines (n, 2, 2), each from one (column, row) to another; ``width`` is in points."""
        lines = LineCollection(list(segments), colors=colour, linewidths=width, transform=self.data)
        self.figure.add_artist(lines)


def _cells_of_pixels(start: float, end: float, n_cells: int) -> tuple[np.ndarray, int]:
    """The cell under the middle of each pixel from ``start`` to ``end``, and the first pixel; at least one pixel."""
    first = round(start)
    middles = np.arange(first, max(first + 1, round(end))) + 0.5
    cells = np.floor((middles - start) / (end - start) * n_cells).astype(int)
    return cells.clip(0, n_cells - 1), first


def sparse_ticks(n: int, most: int = 12) -> np.ndarray:
    """At most ``most`` evenly spaced indices from 0 to ``n - 1``, so that tick labels do not overlap."""
    return np.arange(0, n, max(1, -(-n // most)))


def matrix_figure(
    values: np.ndarray,
    width: float,
    height: float,
    title: str,
    xlabel: str,
    ylabel: str,
    label: str,
    limit: float | None = None,
    colours: str | Colormap = "RdBu_r",
) -> Figure:
    """Draw a matrix with a colour scale from ``-limit`` to ``limit`` and with indices on both axes.

    Args:
        values: (rows, columns).
        width, height, title, xlabel, ylabel: as in `Plot`.
        label: label of the colour bar.
        limit: value at the end of the colour scale; None: the largest magnitude.
        colours: a diverging colour map.
    """
    limit = limit or float(np.abs(values).max()) or 1.0
    n_rows, n_columns = values.shape
    plot = MapPlot(width, height, title, xlabel, ylabel, n_columns, n_rows)
    plot.map(values, colours, -limit, limit)
    for n, write in ((n_rows, plot.yticks), (n_columns, plot.xticks)):
        ticks = sparse_ticks(n)
        write(ticks, ticks)
    plot.colour_scale(colours, -limit, limit, label)
    return plot.figure
