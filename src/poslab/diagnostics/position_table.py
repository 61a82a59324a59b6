"""A picture of the position table."""

from collections.abc import Iterable
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from poslab.data.module import Probe
from poslab.diagnostics.base import Diagnostic, Finding, Picture
from poslab.model import LanguageModel
from poslab.pictures.figures import message_figure, to_array
from poslab.pictures.plots import matrix_figure


def draw_table(table: np.ndarray) -> Figure:
    """Draw the table (L, D), position by dimension; the bands of a sinusoidal table are its wavelengths."""
    n_positions, d_model = table.shape
    title = f"Position table, L {n_positions} x D {d_model}"
    return matrix_figure(table, 5.0, 2.8, title, "dimension", "position", "value")


class PositionTable(Diagnostic):
    """Image ``positions/table``: position by dimension."""

    def look(self, model: LanguageModel, probe: Probe) -> Iterable[Finding]:
        table = model.positions.table()
        if table is None:
            yield Picture("positions/table", partial(message_figure, "No table:\nthis position scheme adds no vectors"))
        else:
            yield Picture("positions/table", partial(draw_table, to_array(table)))
