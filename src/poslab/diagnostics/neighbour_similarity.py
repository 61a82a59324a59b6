"""How similar the vectors of neighbouring positions are."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
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


def draw_curve(curve: list[float], start: list[float] | None = None, positions: str = "") -> Figure:
    """Draw the mean cosine similarity by offset.

    Args:
        curve: of the present table.
        start: of the untrained table, drawn dashed; None if ``curve`` is of the untrained table.
        positions: the positions that are compared, for the title, if they are not all positions of the table.
    """
    title = "Neighbour similarity of position vectors"
    plot = Plot(4.2, 2.5, f"{title}{positions}", "offset k (positions apart)", "mean cosine")
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


def draw_matrix(matrix: np.ndarray, positions: str = "") -> Figure:
    """Draw the cosine similarity of every pair of positions, (n, n)."""
    title = f"Cosine similarity of position vectors{positions}"
    return matrix_figure(matrix, 3.2, 3.2, title, "position", "position", "cosine", limit=1.0)


class NeighbourSimilarity(Diagnostic):
    """Scalars ``neighbour_similarity/offset_<k>``, their curve, and the similarity of all pairs of positions.

    Only the rows of the position table that training sequences use are compared. The other rows of a longer table stay
    as they were initialised and would hide what was learned. If there are such rows, the titles of the pictures name
    the positions that are compared.

    A learned table starts near 0 at all offsets and changes. The curve of the sinusoidal table is smooth and fixed.

    Args:
        every: validations from one look to the next; 0 switches the diagnostic off.
        max_offset: largest k; fewer if the table has too few rows.

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

    def _n_offsets(self, vectors: Float[Tensor, "n d"] | None) -> int:
        return 0 if vectors is None else min(self.max_offset, vectors.shape[0] - 1)

    def scalar_names(self, task: Task, model: LanguageModel) -> list[str]:
        return [tag(k) for k in range(1, self._n_offsets(model.positions.trained_table(task.seq_len)) + 1)]

    def look(self, model: LanguageModel, probe: Probe) -> Iterable[Finding]:
        table, vectors = model.positions.table(), model.positions.trained_table(probe.data.task.seq_len)
        if table is None or vectors is None or len(vectors) < 2:
            reason = "this position scheme has no table" if vectors is None else "training uses a single row"
            yield Picture("neighbour_similarity/curve", partial(message_figure, f"No neighbour similarity:\n{reason}"))
            yield Picture("neighbour_similarity/matrix", partial(message_figure, f"No similarity matrix:\n{reason}"))
            return
        curve = neighbour_cosine_curve(vectors, self._n_offsets(vectors))
        yield Scalars({tag(k): value for k, value in enumerate(curve, start=1)})
        positions = "" if len(vectors) == len(table) else f" 0 to {len(vectors) - 1} of {len(table)}"
        # In a checkpoint of an older version, the curve of the untrained table may have more offsets.
        start = self._start[: len(curve)] if self._start else None
        yield Picture("neighbour_similarity/curve", partial(draw_curve, curve, start, positions))
        matrix = to_array(neighbour_cosine_matrix(vectors))
        yield Picture("neighbour_similarity/matrix", partial(draw_matrix, matrix, positions))
        self._start = self._start or curve
