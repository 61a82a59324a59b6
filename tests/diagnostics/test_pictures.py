"""The pictures of the other diagnostics: what they show, and that they can be read."""

import math

import numpy as np
import pytest
from matplotlib import colormaps

from poslab.diagnostics.embedding_gradient import draw_rows
from poslab.diagnostics.neighbour_similarity import draw_curve, draw_matrix
from poslab.diagnostics.position_table import draw_table
from poslab.evaluation.metrics import neighbour_cosine_matrix
from poslab.pictures.figures import (
    LabelledFigure,
)
from poslab.pictures.plots import MapPlot, Plot, matrix_figure
from poslab.positions.sinusoidal import sinusoidal_table
from support.figures import PICTURES, assert_readable, at, close, ink, maps, pixels, texts, viridis


def test_curve_shows_its_values_and_where_they_started() -> None:
    now, start = [0.35, -0.17, -0.95], [0.06, -0.08, 0.01]
    figure = draw_curve(now, start)
    axes = figure.axes[0]
    drawn = [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.lines]
    assert ([1, 2, 3], now) in drawn
    assert ([1, 2, 3], start) in drawn
    low, high = axes.get_ylim()
    assert low < -0.95
    assert high > 1
    assert any("before training" in text and "now" in text for text in texts(figure))


def test_curve_of_an_untrained_table_has_one_line() -> None:
    figure = draw_curve([0.1, 0.0])
    assert len(figure.axes[0].lines) == 1
    assert not any("now" in text for text in texts(figure))


@pytest.mark.parametrize("n", [1, 2, 8, 99])
def test_curve_of_any_length_can_be_read(n: int) -> None:
    assert_readable(draw_curve([0.1] * n, [0.0] * n))


def test_legend_of_the_curve_is_not_written_over_the_curve() -> None:
    high = [0.9, 0.98, 0.99, 0.97, 0.98, 0.99, 0.98, 0.99]
    figure = draw_curve(high, [-0.95] * 8)
    figure.canvas.draw()
    axes = figure.axes[0]
    assert isinstance(figure, LabelledFigure)
    (legend,) = [label for label in figure.labels if "before training" in label.text]
    box = ink(figure, legend)
    for line in axes.lines:
        for x, y in axes.transData.transform(line.get_xydata()):
            # A mark is five points wide.
            under = box.x0 - 4 < x < box.x1 + 4 and box.y0 - 4 < y < box.y1 + 4
            assert not under, "a point lies under the legend"


def test_matrix_is_drawn_from_minus_one_to_one() -> None:
    matrix = neighbour_cosine_matrix(sinusoidal_table(12, 32)).numpy()
    figure = draw_matrix(matrix)
    (image,) = maps(figure)
    assert (image.low, image.high) == (-1, 1)
    assert np.array_equal(image.values, matrix)
    assert {"position", "cosine", "-1", "0", "1", "11"} <= set(texts(figure))


@pytest.mark.parametrize("d_model", [32, 64])
def test_table_is_drawn_whole_on_a_scale_with_white_at_zero(d_model: int) -> None:
    table = 3 * sinusoidal_table(12, d_model).numpy()
    figure = draw_table(table)
    (image,) = maps(figure)
    assert image.high == -image.low == pytest.approx(np.abs(table).max())
    assert np.array_equal(image.values, table)
    written = texts(figure)
    assert {"position", "dimension", "value"} <= set(written)
    assert any("12" in text and str(d_model) in text and "table" in text for text in written)
    # Position 0: sin 0 is white, cos 0 is the darkest red.
    picture = pixels(figure)
    assert close(at(figure, picture, 0, 0), (247, 247, 247))
    assert close(at(figure, picture, 1, 0), (103, 0, 31))


def test_rows_are_coloured_where_gradient_came_and_white_elsewhere() -> None:
    norms = np.zeros(65, dtype=np.float32)
    norms[[0, 13, 64]] = (1.0, 2.0, 0.5)
    figure = draw_rows(norms, 240)
    (image,) = maps(figure)
    columns = image.values.shape[1]
    picture = pixels(figure)
    for token in range(image.values.size):
        seen = at(figure, picture, token % columns, token // columns)
        has = token < 65 and norms[token] > 0
        assert close(seen, viridis(float(norms[token]) / 2)) if has else seen == (255, 255, 255)
    assert any("240" in text and "3 of 65" in text for text in texts(figure))


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_can_be_read(name: str) -> None:
    figure = PICTURES[name]()
    width, height = figure.canvas.get_width_height()
    assert 150 <= height < 2500
    assert 150 <= width < 2500
    assert_readable(figure)


@pytest.mark.parametrize("cell", [1.0, 3.0])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (7, 2), (40, 90), (500, 700)])
def test_every_pixel_of_a_map_has_the_colour_of_the_cell_that_its_middle_lies_in(
    shape: tuple[int, int], cell: float
) -> None:
    values = np.random.default_rng(0).random(shape)
    rows, columns = (cell * n for n in shape)
    plot = MapPlot(3.03, 2.37, "map", "x", "y", columns + 2, rows + 1, framed=False)
    plot.map(values, "viridis", 0.0, 1.0, (1.0, 0.5), cell)
    picture = pixels(plot.figure)[::-1]
    shades = (255 * colormaps["viridis"](values)[..., :3]).astype(int)
    (left, top), (right, bottom) = plot.data.transform([(0.5, 0.0), (0.5 + columns, rows)])
    across, up = np.meshgrid(
        np.arange(math.ceil(left + 0.5), math.floor(right - 0.5)),
        np.arange(math.ceil(bottom + 0.5), math.floor(top - 0.5)),
    )
    middles = np.stack([across.ravel() + 0.5, up.ravel() + 0.5], axis=1)
    column, row = ((plot.data.inverted().transform(middles) - (0.5, 0.0)) / cell).T
    # On a border between two cells either side will do.
    inside = (np.abs(column - column.round()) > 1e-6) & (np.abs(row - row.round()) > 1e-6)
    seen = picture[up.ravel(), across.ravel()][inside]
    assert np.abs(seen - shades[row.astype(int), column.astype(int)][inside]).max() <= 1
    assert len(seen) > 1000


def test_nan_is_left_white_and_a_colour_scale_beyond_its_ends_is_cut() -> None:
    figure = matrix_figure(np.array([[np.nan, 5.0], [-5.0, 0.0]]), 2, 2, "map", "x", "y", "value", limit=1.0)
    picture = pixels(figure)
    assert at(figure, picture, 0, 0) == (255, 255, 255)
    assert close(at(figure, picture, 1, 0), (103, 0, 31))
    assert close(at(figure, picture, 0, 1), (5, 48, 97))


def test_a_title_wider_than_its_axes_is_not_cut_off() -> None:
    assert_readable(Plot(0.5, 0.5, "a title that is far wider than such small axes", "x", "y", colour_bar=True).figure)
