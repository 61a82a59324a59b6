"""What each head looks at."""

import math
from collections.abc import Iterable
from functools import partial

import numpy as np
from matplotlib import colormaps
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from poslab.data import Probe
from poslab.diagnostics.base import Diagnostic, Finding, Picture
from poslab.diagnostics.figures import Plot, sparse_ticks, to_array
from poslab.model import LanguageModel

GAP = 1.5
"""Cells of white between two heads, and above each for its name."""
GAP_INCHES = 0.22
"""The least such white, in inches."""


def cell_outlines(cells: np.ndarray) -> np.ndarray:
    """The borders of the marked cells of a matrix, as segments (n, 2, 2) of (x, y) in image coordinates.

    A border between two marked cells is left out, so that a marked area gets one outline.
    """
    padded = np.pad(cells.astype(bool), 1)
    segments = []
    rows, columns = np.nonzero(padded[1:-1, 1:] != padded[1:-1, :-1])
    segments += [((x - 0.5, y - 0.5), (x - 0.5, y + 0.5)) for y, x in zip(rows, columns, strict=True)]
    rows, columns = np.nonzero(padded[1:, 1:-1] != padded[:-1, 1:-1])
    segments += [((x - 0.5, y - 0.5), (x + 0.5, y - 0.5)) for y, x in zip(rows, columns, strict=True)]
    return np.array(segments, dtype=float).reshape(-1, 2, 2)


def draw_heads(weights: np.ndarray, labels: list[str], answer_cells: np.ndarray, layer: int) -> Figure:
    """Every head's map (query, key) side by side on one colour scale.

    All heads stand in one image on one pair of axes: sixteen heads cost little more than one.

    Args:
        weights: (H, T, T), rows sum to 1.
        labels: T token labels, for both axes.
        answer_cells: (T, T), the cells to outline.
        layer: for the title.
    """
    n_heads, n_tokens, _ = weights.shape
    columns = math.ceil(math.sqrt(n_heads))
    rows = math.ceil(n_heads / columns)
    inches_per_cell = min(0.21 if n_heads > 1 else 0.35, (11 / columns - GAP_INCHES) / n_tokens)
    # Many tokens make small cells, but a name needs its height.
    gap = max(GAP, GAP_INCHES / inches_per_cell)
    pitch = n_tokens + gap
    plot = Plot(
        inches_per_cell * (columns * pitch - gap),
        inches_per_cell * rows * pitch,
        f"Attention weights, layer {layer}; red: holds the answer, grey: masked future",
        "key (the token looked at)",
        "query (the token that looks)",
        colour_bar=True,
    )
    axes = plot.axes
    colours = colormaps["viridis"].with_extremes(bad="0.88")
    future = ~np.tri(n_tokens, dtype=bool)
    outline = cell_outlines(answer_cells)
    triangle = cell_outlines(~future)
    ticks = sparse_ticks(n_tokens, most=min(16, max(1, int(n_tokens * inches_per_cell / 0.12))))
    origins = [(head % columns * pitch, head // columns * pitch) for head in range(n_heads)]
    for head, (x, y) in enumerate(origins):
        axes.imshow(
            np.ma.masked_array(weights[head], future),
            extent=(x - 0.5, x + n_tokens - 0.5, y + n_tokens - 0.5, y - 0.5),
            cmap=colours,
            vmin=0.0,
            vmax=1.0,
            interpolation="nearest",
        )
        axes.text(
            x + n_tokens / 2 - 0.5,
            y - 0.5 - 0.04 / inches_per_cell,
            f"head {head}",
            ha="center",
            va="bottom",
            fontsize=8,
        )
    for segments, colour, width in ((triangle, "0.6", 0.6), (outline, "red", min(1.3, 20 * inches_per_cell))):
        shifted = np.concatenate([segments + np.array(origin) for origin in origins])
        axes.add_collection(LineCollection(list(shifted), colors=colour, linewidths=width))
    plot.xticks(
        [c * pitch + t for c in range(columns) for t in ticks], [labels[t] for t in ticks] * columns, rotation=90
    )
    plot.yticks([r * pitch + t for r in range(rows) for t in ticks], [labels[t] for t in ticks] * rows)
    axes.set_xlim(-0.5, columns * pitch - gap - 0.5)
    axes.set_ylim(rows * pitch - gap - 0.5, -0.5 - gap)
    axes.set_frame_on(False)
    plot.colour_scale(colours, 0.0, 1.0, "weight")
    return plot.figure


class HeadMaps(Diagnostic):
    """Image ``heads/layer_<i>``: the map of every head on the probe sequence, layers counted from 0."""

    def look(self, model: LanguageModel, probe: Probe) -> Iterable[Finding]:
        for layer, weights in enumerate(model.attention_maps(probe.tokens)):
            yield Picture(
                f"heads/layer_{layer}",
                partial(draw_heads, to_array(weights[0]), probe.labels, probe.answer_cells, layer),
            )
