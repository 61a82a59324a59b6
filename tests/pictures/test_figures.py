"""Every drawing function: what the picture shows, that it can be read, and that nothing global is touched."""

import ast
import gc
import io
import itertools
import math
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from PIL import Image

from poslab.diagnostics.embedding_gradient import draw_rows
from poslab.diagnostics.heads import cell_outlines, draw_heads
from poslab.diagnostics.neighbour_similarity import draw_curve, draw_matrix
from poslab.diagnostics.position_table import draw_table
from poslab.evaluation.metrics import neighbour_cosine_matrix
from poslab.pictures.figures import (
    LabelledFigure,
    message_figure,
    new_figure,
    to_array,
    to_png,
)
from poslab.pictures.plots import MapPlot, Plot, matrix_figure, sparse_ticks
from poslab.positions.sinusoidal import sinusoidal_table
from poslab.tasks.copy import CopyTask
from support.figures import assert_readable, at, close, corner, ink, maps, pixels, place, red_at, texts, viridis
from support.paths import ROOT

GREY = (224, 224, 224)
"""0.88 of white: what no query can see."""


def some_weights(n_heads: int, n_tokens: int) -> np.ndarray:
    """Causal attention weights (H, T, T): rows sum to 1, the future is exactly 0."""
    scores = np.random.default_rng(0).normal(scale=2, size=(n_heads, n_tokens, n_tokens))
    weights = np.exp(scores) * np.tri(n_tokens)
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def heads_figure(weights: np.ndarray, layer: int = 0) -> tuple[Figure, list[str], np.ndarray]:
    """The picture of these weights on a copy probe, its token labels and its answer cells."""
    n_tokens = weights.shape[-1]
    task = CopyTask(64, n_tokens // 2)
    tokens = task.sample(np.random.default_rng(1), 1).tokens[0]
    labels = [task.token_label(int(token)) for token in tokens]
    cells = task.answer_cells(tokens)
    return draw_heads(weights, labels, cells, layer), labels, cells


# Attention maps


@pytest.mark.parametrize("n_heads", [1, 4, 8, 16])
def test_each_cell_has_the_colour_of_its_weight_and_the_future_is_grey(n_heads: int) -> None:
    weights = some_weights(n_heads, 12)
    figure, _, _ = heads_figure(weights)
    picture = pixels(figure)
    assert len(maps(figure)) == n_heads
    for head in range(n_heads):
        x, y = corner(figure, head)
        for query, key in itertools.product(range(12), repeat=2):
            seen = at(figure, picture, x + key, y + query)
            wanted = viridis(float(weights[head, query, key])) if key <= query else GREY
            assert close(seen, wanted), f"head {head}, query {query}, key {key}: {seen}, not {wanted}"


def test_one_colour_scale_for_all_heads_whatever_their_largest_weight() -> None:
    weights = np.zeros((4, 12, 12), dtype=np.float32)
    weights[:, :, 0] = np.array([0.1, 0.3, 0.6, 1.0])[:, None]
    weights[:, 5, 3] = 0.3
    figure, _, _ = heads_figure(weights)
    picture = pixels(figure)
    corners = [corner(figure, head) for head in range(4)]
    assert {at(figure, picture, x + 3, y + 5) for x, y in corners} == {at(figure, picture, *corners[1])}
    assert {(one.low, one.high) for one in maps(figure)} == {(0.0, 1.0)}
    # A weight of zero that could have been more is not the grey of what was masked.
    assert close(at(figure, picture, corners[0][0] + 1, corners[0][1] + 3), viridis(0.0))


@pytest.mark.parametrize("n_heads", [1, 4, 16])
def test_answer_cells_and_only_they_are_outlined_in_red(n_heads: int) -> None:
    figure, _, cells = heads_figure(some_weights(n_heads, 12))
    picture = pixels(figure)
    borders = ((-0.5, 0), (0.5, 0), (0, -0.5), (0, 0.5))
    near = cells.copy()
    near[1:] |= cells[:-1]
    near[:-1] |= cells[1:]
    near[:, 1:] |= cells[:, :-1]
    near[:, :-1] |= cells[:, 1:]
    for head in range(n_heads):
        x, y = corner(figure, head)
        for query, key in itertools.product(range(12), repeat=2):
            sides = [red_at(figure, picture, x + key + dx, y + query + dy) for dx, dy in borders]
            if cells[query, key]:
                assert all(sides), f"head {head}, query {query}, key {key} has no whole outline: {sides}"
            elif not near[query, key]:
                assert not any(sides), f"head {head}, query {query}, key {key} is outlined"
    assert cells.sum() == 6


@pytest.mark.parametrize("n_heads", [1, 4, 8, 16])
def test_heads_are_named_and_both_axes_carry_the_token_labels(n_heads: int) -> None:
    figure, labels, _ = heads_figure(some_weights(n_heads, 12), layer=3)
    written = texts(figure)
    assert [text for text in written if text.startswith("head ")] == [f"head {head}" for head in range(n_heads)]
    columns = math.ceil(math.sqrt(n_heads))
    rows = math.ceil(n_heads / columns)
    for label in set(labels):
        assert written.count(label) >= labels.count(label) * (columns + rows)
    assert any("layer 3" in text for text in written)
    assert {"key (the token looked at)", "query (the token that looks)", "weight", "SEP"} <= set(written)
    # From 0 to 1 on the colour bar.
    assert {"0", "0.25", "0.5", "0.75", "1"} <= set(written)


def test_a_label_stands_beside_its_own_row_and_below_its_own_column() -> None:
    figure, labels, _ = heads_figure(some_weights(1, 12))
    figure.canvas.draw()
    x, y = corner(figure, 0)
    assert isinstance(figure, LabelledFigure)
    centres = [ink(figure, label) for label in figure.labels if label.text == "SEP"]
    assert len(centres) == 2
    across, up = place(figure, x + labels.index("SEP"), y + labels.index("SEP"))
    assert any(abs((box.x0 + box.x1) / 2 - across) < 4 for box in centres)
    assert any(abs((box.y0 + box.y1) / 2 - up) < 4 for box in centres)


@pytest.mark.parametrize(
    ("n_heads", "n_tokens"),
    [(1, 2), (4, 2), (1, 6), (4, 6), (1, 12), (4, 12), (8, 12), (16, 12), (16, 24), (1, 100), (4, 100), (16, 100)],
)
def test_maps_of_any_size_can_be_read(n_heads: int, n_tokens: int) -> None:
    figure, _, _ = heads_figure(some_weights(n_heads, n_tokens))
    width, height = figure.canvas.get_width_height()
    assert 150 < width < 2500
    assert 150 < height < 2500
    assert_readable(figure)


def test_long_maps_still_show_the_triangle_and_the_answers() -> None:
    figure, _, _ = heads_figure(some_weights(16, 100))
    picture = pixels(figure)
    for head in (0, 15):
        x, y = corner(figure, head)
        assert close(at(figure, picture, x + 70, y + 20), GREY)
        assert not close(at(figure, picture, x + 20, y + 40), GREY, by=20)
        places = [at(figure, picture, x + key + dx, y + key + 50) for key in range(50) for dx in (-0.5, 0, 0.5)]
        assert sum(colour[0] - max(colour[1:]) > 60 for colour in places) >= 50


# Outlines, by hand


def edges(cells: list[list[int]]) -> set[frozenset[tuple[float, float]]]:
    return {frozenset(map(tuple, segment)) for segment in cell_outlines(np.array(cells)).tolist()}


def edge(*points: tuple[float, float]) -> frozenset[tuple[float, float]]:
    return frozenset(points)


def test_outline_of_one_cell_is_its_four_sides() -> None:
    assert edges([[0, 0], [0, 1]]) == {
        edge((0.5, 0.5), (0.5, 1.5)),
        edge((1.5, 0.5), (1.5, 1.5)),
        edge((0.5, 0.5), (1.5, 0.5)),
        edge((0.5, 1.5), (1.5, 1.5)),
    }


def test_outline_of_neighbours_leaves_out_the_side_between_them() -> None:
    assert edges([[1, 1], [0, 0]]) == {
        edge((-0.5, -0.5), (-0.5, 0.5)),
        edge((1.5, -0.5), (1.5, 0.5)),
        edge((-0.5, -0.5), (0.5, -0.5)),
        edge((0.5, -0.5), (1.5, -0.5)),
        edge((-0.5, 0.5), (0.5, 0.5)),
        edge((0.5, 0.5), (1.5, 0.5)),
    }


@pytest.mark.parametrize(
    ("cells", "n"), [([[1, 1], [1, 1]], 8), ([[1, 0], [0, 1]], 8), ([[1], [1]], 6), ([[1, 0], [1, 1]], 8), ([[0]], 0)]
)
def test_outlines_of_small_masks(cells: list[list[int]], n: int) -> None:
    segments = cell_outlines(np.array(cells, dtype=bool))
    assert segments.shape == (n, 2, 2)
    assert len(edges(cells)) == n, "a side is drawn twice"
    # Every side is one cell long and lies between two cells.
    assert np.all(np.abs(segments[:, 0] - segments[:, 1]).sum(-1) == 1)
    assert np.all(segments % 1 == 0.5)


# The other pictures


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


# From figure to file


def test_png_is_what_the_canvas_shows_and_the_same_every_time() -> None:
    pngs = [to_png(message_figure("x")) for _ in range(2)]
    assert pngs[0] == pngs[1]
    image = Image.open(io.BytesIO(pngs[0]))
    assert image.format == "PNG"
    assert image.size == (500, 200)
    figure = message_figure("x")
    assert isinstance(figure, LabelledFigure)
    written = (np.asarray(image) != pixels(figure)).any(axis=-1)
    rows, columns = np.nonzero(written)
    box = ink(figure, figure.labels[0])
    # The letter, with its pale edges, where the canvas has nothing; everything else is the canvas's.
    assert box.x0 - 3 <= columns.min() <= columns.max() <= box.x1 + 3
    assert box.y0 - 3 <= 200 - rows.max() <= 200 - rows.min() <= box.y1 + 3


def test_a_figure_is_freed_once_it_is_a_png() -> None:
    figure = draw_table(np.ones((2, 2), dtype=np.float32))
    to_png(figure)
    left = weakref.ref(figure)
    del figure
    gc.collect()
    assert left() is None


def test_no_source_file_imports_pyplot_or_chooses_a_backend() -> None:
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Attribute):
                names = [f"matplotlib.{node.attr}"] if getattr(node.value, "id", "") == "matplotlib" else []
            bad = ("matplotlib.pyplot", "pylab", "matplotlib.use", "matplotlib.switch_backend")
            found += [f"{path}: {name}" for name in names if name.startswith(bad) or name.endswith(".pylab")]
    assert found == []


def test_no_figure_is_ever_known_to_pyplot() -> None:
    from matplotlib import pyplot

    for make in PICTURES.values():
        make()
    assert pyplot.get_fignums() == []
    assert type(new_figure(1, 1).canvas).__name__ == "FigureCanvasAgg"


# Small helpers


def test_bf16_weights_can_be_plotted() -> None:
    tensor = torch.tensor([[0.5, -0.25]], dtype=torch.bfloat16, requires_grad=True)
    array = to_array(tensor)
    assert array.dtype == np.float32
    assert array.tolist() == [[0.5, -0.25]]
    assert len(to_png(draw_table(array))) > 1000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_an_array_is_a_copy(dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, dtype=dtype)
    array = to_array(tensor)
    tensor += 1
    assert array.tolist() == [0, 0, 0]
    assert array.dtype == np.float32


@pytest.mark.parametrize("most", [1, 5, 12, 16])
def test_ticks_are_few_even_and_start_at_zero(most: int) -> None:
    for n in range(1, 300):
        ticks = sparse_ticks(n, most)
        assert ticks[0] == 0
        assert ticks[-1] < n
        assert 1 <= len(ticks) <= most
        assert len(set(np.diff(ticks))) <= 1
        if n <= most:
            assert len(ticks) == n
