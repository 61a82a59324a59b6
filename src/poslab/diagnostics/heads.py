"""Maps of the attention weights of each head."""

import math
from collections.abc import Iterable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from matplotlib import colormaps
from matplotlib.figure import Figure

from poslab.data.module import Probe
from poslab.diagnostics.base import Diagnostic, Finding, Picture
from poslab.model import LanguageModel
from poslab.pictures.figures import DPI, to_array
from poslab.pictures.plots import MapPlot, sparse_ticks
from poslab.tasks import Task

WIDTH_INCHES = 11.0
"""Width of all heads that are drawn side by side."""
LEAST_PIXELS = 2
"""Least width of a cell; with too many tokens for it, cells are drawn in blocks."""
BLOCK_PIXELS = 4
"""Width of a block, so that its colour is visible inside its outline."""
GAP = 1.5
"""White space between two heads, and above each head for its name, in cells."""
GAP_INCHES = 0.22
"""The least white space, in inches."""


def cell_outlines(cells: np.ndarray) -> np.ndarray:
    """Return the borders of the marked cells of a matrix as segments (n, 2, 2) of (x, y) in image coordinates.

    Borders between two marked cells are left out, so that a marked area gets one outline.
    """
    padded = np.pad(cells.astype(bool), 1)
    segments = []
    rows, columns = np.nonzero(padded[1:-1, 1:] != padded[1:-1, :-1])
    segments += [((x - 0.5, y - 0.5), (x - 0.5, y + 0.5)) for y, x in zip(rows, columns, strict=True)]
    rows, columns = np.nonzero(padded[1:, 1:-1] != padded[:-1, 1:-1])
    segments += [((x - 0.5, y - 0.5), (x + 0.5, y - 0.5)) for y, x in zip(rows, columns, strict=True)]
    return np.array(segments, dtype=float).reshape(-1, 2, 2)


def block_size(n_heads: int, n_tokens: int) -> int:
    """Number of tokens that share a row or column of the picture; 1 if there is space for a cell per token."""
    pixels = (WIDTH_INCHES / heads_in_a_row(n_heads) - GAP_INCHES) * DPI
    return 1 if n_tokens * LEAST_PIXELS <= pixels else math.ceil(n_tokens * BLOCK_PIXELS / pixels)


def heads_in_a_row(n_heads: int) -> int:
    """Number of heads per row that makes the picture about square."""
    return math.ceil(math.sqrt(n_heads))


def largest_weights(weights: Float[torch.Tensor, "h t t"], block: int) -> Float[torch.Tensor, "h s s"]:
    """Return the largest weight of every ``block`` x ``block`` cells; the last block of a row may be smaller.

    Not the mean: a head that copies puts its weight on one cell per row, and a mean over eight keys would show an
    eighth of it.
    """
    return weights if block == 1 else F.max_pool2d(weights, block, ceil_mode=True)


def any_cell(cells: Bool[np.ndarray, "t t"], block: int) -> Bool[np.ndarray, "s s"]:
    """Mark each block of ``block`` x ``block`` cells that contains a marked cell."""
    starts = np.arange(0, len(cells), block)
    return np.logical_or.reduceat(np.logical_or.reduceat(cells, starts, axis=0), starts, axis=1)


def draw_heads(
    weights: np.ndarray, labels: list[str], answer_cells: np.ndarray, layer: int, block: int = 1, on: str = ""
) -> Figure:
    """Draw the maps (query, key) of all heads side by side, on one colour scale.

    All heads share one image and one pair of axes, so that sixteen heads cost little more than one.

    Args:
        weights: (H, S, S), rows sum to 1; with ``block`` above 1 the result of `largest_weights`.
        labels: T token labels, for both axes.
        answer_cells: (S, S), the cells to outline.
        layer: number of the layer, for the title.
        block: number of tokens that share a row or column.
        on: description of the sequence, for the title.
    """
    n_heads, n_shown, _ = weights.shape
    # All coordinates are in tokens, so that labels and outlines have the same places with and without blocks.
    n_tokens = n_shown * block
    columns = heads_in_a_row(n_heads)
    rows = math.ceil(n_heads / columns)
    inches_per_cell = min(0.21 if n_heads > 1 else 0.35, (WIDTH_INCHES / columns - GAP_INCHES) / n_tokens)
    # With many tokens the cells are small, but a name always needs the same height.
    gap = max(GAP, GAP_INCHES / inches_per_cell)
    pitch = n_tokens + gap
    plot = MapPlot(
        inches_per_cell * (columns * pitch - gap),
        inches_per_cell * rows * pitch,
        f"Attention weights, layer {layer}{on}; red: holds the answer, grey: masked future"
        + (f"; a cell is the largest of {block} x {block} weights" if block > 1 else ""),
        "key (the token looked at)",
        "query (the token that looks)",
        columns * pitch - gap,
        rows * pitch - gap,
        above=gap,
        framed=False,
    )
    colours = colormaps["viridis"].with_extremes(bad="0.88")
    future = ~np.tri(n_shown, dtype=bool)
    outline, triangle = ((cell_outlines(cells) + 0.5) * block - 0.5 for cells in (answer_cells, ~future))
    ticks = sparse_ticks(len(labels), most=min(16, max(1, int(n_tokens * inches_per_cell / 0.12))))
    origins = [(head % columns * pitch, head // columns * pitch) for head in range(n_heads)]
    for head, (x, y) in enumerate(origins):
        plot.map(np.ma.masked_array(weights[head], future), colours, 0.0, 1.0, (x, y), block)
        plot.write(x + n_tokens / 2 - 0.5, y - 0.5 - 0.02 / inches_per_cell, f"head {head}", size=8, anchor="md")
    for segments, colour, width in ((triangle, "0.6", 0.6), (outline, "red", min(1.3, 20 * inches_per_cell * block))):
        plot.lines(np.concatenate([segments + np.array(origin) for origin in origins]), colour, width)
    plot.xticks(
        [c * pitch + t for c in range(columns) for t in ticks], [labels[t] for t in ticks] * columns, upright=True
    )
    plot.yticks([r * pitch + t for r in range(rows) for t in ticks], [labels[t] for t in ticks] * rows)
    plot.colour_scale(colours, 0.0, 1.0, "weight")
    return plot.figure


class HeadMaps(Diagnostic):
    """Image ``heads/layer_<i>``: the map of every head on the probe sequence, layers counted from 0.

    With a prompt also ``heads/prompt/layer_<i>``: the maps on the prompt, followed by the oracle's answer to it.

    Args:
        every: validations from one look to the next; 0 switches the diagnostic off.
        prompt: token labels separated by spaces.

    Raises:
        ValueError: the prompt has no token.
    """

    def __init__(self, every: int = 1, prompt: str | int | None = None) -> None:
        super().__init__(every)
        # From the command line, a single number arrives as an int.
        self.prompt = None if prompt is None else str(prompt)
        if self.prompt is not None and not self.prompt.split():
            raise ValueError("prompt is empty; give at least one token, or null for no prompt")

    def check(self, task: Task, max_context_length: int) -> None:
        if self.prompt is None:
            return
        n_tokens = len(prompted(task, self.prompt))
        if n_tokens > max_context_length:
            raise ValueError(
                f"prompt '{self.prompt}' and the answer to it are {n_tokens} tokens, longer than "
                f"max_context_length {max_context_length}; shorten it or set model.max_context_length={n_tokens}"
            )

    def look(self, model: LanguageModel, probe: Probe) -> Iterable[Finding]:
        yield from self._maps(model, probe, "heads/layer_", "")
        if self.prompt is not None:
            tokens = torch.from_numpy(prompted(probe.data.task, self.prompt))[None]
            asked = probe.data.probe_of(tokens)._replace(tokens=tokens.to(probe.tokens.device))
            yield from self._maps(model, asked, "heads/prompt/layer_", f", on the prompt {shortened(self.prompt)}")

    def _maps(self, model: LanguageModel, probe: Probe, tag: str, on: str) -> Iterable[Finding]:
        def shown(weights: torch.Tensor) -> np.ndarray:
            return to_array(largest_weights(weights[0], block_size(*weights.shape[1:3])))

        for layer, weights in enumerate(model.attention_maps(probe.tokens, keep=shown)):
            block = block_size(len(weights), len(probe.labels))
            cells = any_cell(probe.answer_cells, block)
            drawn = partial(draw_heads, weights, probe.labels, cells, layer, block=block, on=on)
            yield Picture(f"{tag}{layer}", drawn)


def prompted(task: Task, prompt: str) -> np.ndarray:
    """Convert a prompt to tokens (T,), with the task's separators and the oracle's answer.

    Raises:
        ValueError: a label is not a token of the task, or the task cannot answer the prompt.
    """
    return task.completed(task.prompt(task.encode(prompt)))


def shortened(text: str, most: int = 30) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
