"""How alike the vectors of nearby positions are."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from poslab.data.module import Probe
from poslab.diagnostics.base import Diagnostic, Finding, Picture, Scalars
from poslab.evaluation.metrics import neighbour_cosine_curve, neighbour_cosine_matrix
from poslab.model import LanguageModel
from poslab.pictures.figures import message_figure, to_array
from poslab.pictures.plots import Plot, matrix_figure, sparse_ticks
from poslab.tasks import Task


def tag(offset: int) -> str:
    return f"neighbour_similarity/offset_{offset}"


def draw_curve(curve: list[float], start: list[float] | None = None) -> Figure:
    """Mean cosine similarity against the offset, with the untrained table's curve behind it for comparison."""
    plot = Plot(4.2, 2.5, "Neighbour similarity of position vectors", "offset k (positions apart)", "mean cosine")
    offsets = np.arange(1, len(curve) + 1)
    low = min(-0.25, *curve, *(start or ())) - 0.1
    marks = np.arange(np.ceil(low * 4) / 4, 1.01, 0.25)
    plot.axes.hlines(marks, 0, len(curve) + 1, colors=["0.7" if mark == 0 else "0.92" for mark in marks], linewidths=1)
    legend = "before training (dashed), now (solid)"
    if start is None:
        legend = "before training"
    else:
        plot.axes.plot(offsets, start, "o--", color="0.6", markersize=3)
    plot.axes.plot(offsets, curve, "o-", color="C0", markersize=5)
    plot.write(len(curve) + 0.5, 1.07, legend, anchor="rd")
    plot.axes.set_xlim(0.5, len(curve) + 0.5)
    plot.axes.set_ylim(low, 1.05)
    shown = sparse_ticks(len(curve), 16)
    plot.xticks(offsets[shown], offsets[shown])
    plot.yticks(marks, [f"{mark:.2f}" for mark in marks])
    return plot.figure


def draw_matrix(matrix: np.ndarray) -> Figure:
    """Cosine similarity of every pair of positions, (L, L)."""
    title = "Cosine similarity of position vectors"
    return matrix_figure(matrix, 3.2, 3.2, title, "position", "position", "cosine", limit=1.0)


class NeighbourSimilarity(Diagnostic):
    """Scalars ``neighbour_similarity/offset_<k>``, the curve over k, and the whole matrix.

    A learned table starts near 0 everywhere and finds its structure; the sinusoidal curve is smooth and stays.

    Args:
        every: validations from one look to the next; 0 switches the diagnostic off.
        max_offset: largest k; a shorter table shows as many as it has.

    Raises:
        ValueError: ``max_offset < 1``.
    """

    def __init__(self, every: int = 1, max_offset: int = 8) -> None:
        super().__init__(every)
        if max_offset < 1:
            raise ValueError(f"max_offset={max_offset} must be at least 1")
        self.max_offset = max_offset
        self._start: list[float] | None = None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "start": self._start}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._start = state_dict["start"]

    def _n_offsets(self, table: Tensor | None) -> int:
        return 0 if table is None else min(self.max_offset, table.shape[0] - 1)

    def scalar_names(self, task: Task, model: LanguageModel) -> list[str]:
        return [tag(k) for k in range(1, self._n_offsets(model.positions.table()) + 1)]

    def look(self, model: LanguageModel, probe: Probe) -> Iterable[Finding]:
        table = model.positions.table()
        if table is None or table.shape[0] < 2:
            reason = "this position scheme has no table" if table is None else "the table has a single row"
            yield Picture("neighbour_similarity/curve", partial(message_figure, f"No neighbour similarity:\n{reason}"))
            yield Picture("neighbour_similarity/matrix", partial(message_figure, f"No similarity matrix:\n{reason}"))
            return
        curve = neighbour_cosine_curve(table, self._n_offsets(table))
        yield Scalars({tag(k): value for k, value in enumerate(curve, start=1)})
        yield Picture("neighbour_similarity/curve", partial(draw_curve, curve, self._start))
        yield Picture("neighbour_similarity/matrix", partial(draw_matrix, to_array(neighbour_cosine_matrix(table))))
        self._start = self._start or curve
