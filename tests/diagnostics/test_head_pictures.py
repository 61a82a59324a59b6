"""The maps of heads as pictures: colours, answer cells, labels, and outlines worked out by hand."""

import itertools
import math

import numpy as np
import pytest
from matplotlib.figure import Figure

from poslab.diagnostics.heads import cell_outlines, draw_heads
from poslab.pictures.figures import (
    LabelledFigure,
)
from poslab.tasks.copy import CopyTask
from support.figures import assert_readable, at, close, corner, ink, maps, pixels, place, red_at, texts, viridis

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
