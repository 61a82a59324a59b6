"""Reads colours and texts from figures, and asserts that people can read them."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.transforms import Affine2D, Bbox, Transform
from PIL import Image, ImageChops

from poslab.diagnostics.embedding_gradient import draw_rows
from poslab.diagnostics.neighbour_similarity import draw_curve, draw_matrix
from poslab.diagnostics.position_table import draw_table
from poslab.evaluation.metrics import neighbour_cosine_matrix
from poslab.pictures.figures import (
    DPI,
    Label,
    LabelledFigure,
    message_figure,
    write_labels,
)
from poslab.pictures.plots import MapPlot
from poslab.positions.sinusoidal import sinusoidal_table


class Map(NamedTuple):
    """A matrix that a figure shows by colour, with the arguments of `MapPlot.map`."""

    values: np.ndarray
    low: float
    high: float
    at: tuple[float, float]
    cell: float


# What the plots of maps were asked to draw, by figure.
DATA: WeakKeyDictionary[Figure, Transform] = WeakKeyDictionary()
MAPS: WeakKeyDictionary[Figure, list[Map]] = WeakKeyDictionary()


def note_maps() -> None:
    """Have every plot of maps note what it draws."""
    start, draw = MapPlot.__init__, MapPlot.map

    def noted_start(self: MapPlot, *args: Any, **options: Any) -> None:
        start(self, *args, **options)
        DATA[self.figure], MAPS[self.figure] = self.data, []

    def noted_map(
        self: MapPlot,
        values: np.ndarray,
        colours: Any,
        low: float,
        high: float,
        at: tuple[float, float] = (0.0, 0.0),
        cell: float = 1.0,
    ) -> None:
        MAPS[self.figure].append(Map(values, low, high, at, cell))
        draw(self, values, colours, low, high, at, cell)

    MapPlot.__init__, MapPlot.map = noted_start, noted_map  # type: ignore[method-assign]


note_maps()


def pixels(figure: Figure) -> np.ndarray:
    """The drawn picture, (rows, columns, 3), row 0 at the top."""
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)


def maps(figure: Figure) -> list[Map]:
    return MAPS.get(figure, [])


def place(figure: Figure, x: float, y: float) -> tuple[float, float]:
    """Pixels from the lower left corner of the coordinates of its maps."""
    across, up = DATA[figure].transform((x, y))
    return float(across), float(up)


def at(figure: Figure, picture: np.ndarray, x: float, y: float) -> tuple[int, ...]:
    """The colour at the coordinates of its maps."""
    across, up = place(figure, x, y)
    return tuple(picture[picture.shape[0] - 1 - int(up), int(across)])


def corner(figure: Figure, head: int) -> tuple[float, float]:
    """Coordinates of the centre of a head's cell (0, 0)."""
    return maps(figure)[head].at


def viridis(value: float) -> tuple[int, ...]:
    return tuple(int(255 * part) for part in colormaps["viridis"](value)[:3])


def close(colour: tuple[int, ...], other: tuple[int, ...], by: int = 3) -> bool:
    return all(abs(a - b) <= by for a, b in zip(colour, other, strict=True))


def red_at(figure: Figure, picture: np.ndarray, x: float, y: float) -> bool:
    """Whether a red line runs through this place, or one pixel beside it."""
    across, up = place(figure, x, y)
    row, column = picture.shape[0] - 1 - int(up), int(across)
    patch = picture[row - 1 : row + 2, column - 1 : column + 2].reshape(-1, 3)
    return bool(((patch[:, 0] > 170) & (patch[:, 1] < 90) & (patch[:, 2] < 90)).any())


def texts(figure: Figure) -> list[str]:
    assert isinstance(figure, LabelledFigure)
    return [label.text for label in figure.labels if label.text]


def ink(figure: Figure, label: Label) -> Bbox:
    """The pixels that a label's letters cover, in the figure's coordinates, also those beyond its borders."""
    # On a paper of its own that has room for it on every side, moved by whole pixels.
    reach = math.ceil(label.size * DPI / 72 * (len(label.text) + 4))
    x, y = label.transform.transform(label.at)
    across, up = reach - math.floor(x), reach - math.floor(y)
    paper = Image.new("RGB", (2 * reach, 2 * reach), "white")
    write_labels(paper, [label._replace(transform=label.transform + Affine2D().translate(across, up))])
    red, green, blue = paper.split()
    dark = ImageChops.darker(ImageChops.darker(red, green), blue).point([255] * 128 + [0] * 128)
    covered = dark.getbbox()
    assert covered is not None
    left, top, right, bottom = covered
    assert min(left, top) > 0
    assert max(right, bottom) < 2 * reach
    return Bbox([(left - across, paper.height - bottom - up), (right - across, paper.height - top - up)])


def assert_readable(figure: Figure) -> None:
    """Every text lies inside the picture, on no other text and on no map."""
    figure.canvas.draw()
    width, height = figure.canvas.get_width_height()
    assert isinstance(figure, LabelledFigure)
    boxes = [(label.text, ink(figure, label)) for label in figure.labels if label.text]
    for text, box in boxes:
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
        assert inside, f"{text!r} is cut off: {box} in {width} x {height}"
    for (text, box), (other, other_box) in itertools.combinations(boxes, 2):
        lapped = (min(box.x1, other_box.x1) - max(box.x0, other_box.x0) > 1) and (
            min(box.y1, other_box.y1) - max(box.y0, other_box.y0) > 1
        )
        assert not lapped, f"{text!r} is written over {other!r}"
    for one in maps(figure):
        rows, columns = one.cell * np.array(one.values.shape)
        left, top = place(figure, one.at[0] - 0.5, one.at[1] - 0.5)
        right, bottom = place(figure, one.at[0] - 0.5 + columns, one.at[1] - 0.5 + rows)
        for text, box in boxes:
            across = min(box.x1, right) - max(box.x0, left)
            down = min(box.y1, top) - max(box.y0, bottom)
            assert across <= 1 or down <= 1, f"{text!r} is written over a map"


PICTURES: dict[str, Callable[[], Figure]] = {
    "curve": lambda: draw_curve([0.35, -0.17], [0.1, 0.0]),
    "curve-of-one": lambda: draw_curve([0.35], [0.1]),
    "matrix": lambda: draw_matrix(neighbour_cosine_matrix(sinusoidal_table(12, 32)).numpy()),
    "matrix-of-512": lambda: draw_matrix(neighbour_cosine_matrix(sinusoidal_table(512, 32)).numpy()),
    "table-32": lambda: draw_table(sinusoidal_table(12, 32).numpy()),
    "table-64": lambda: draw_table(sinusoidal_table(12, 64).numpy()),
    "table-512": lambda: draw_table(sinusoidal_table(512, 128).numpy()),
    "table-of-one-row": lambda: draw_table(np.ones((1, 32), dtype=np.float32)),
    "table-of-zeros": lambda: draw_table(np.zeros((12, 32), dtype=np.float32)),
    "rows-65": lambda: draw_rows(np.arange(65, dtype=np.float32), 10),
    "rows-1": lambda: draw_rows(np.ones(1, dtype=np.float32), 10),
    "rows-2": lambda: draw_rows(np.ones(2, dtype=np.float32), 10),
    "rows-1000": lambda: draw_rows(np.arange(1000, dtype=np.float32), 10),
    "rows-of-zeros": lambda: draw_rows(np.zeros(65, dtype=np.float32), 10),
    "message": lambda: message_figure("No table:\nthis position scheme adds no vectors"),
}
