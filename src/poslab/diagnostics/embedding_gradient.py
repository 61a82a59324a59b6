"""Which rows of the token table receive gradient in a training step."""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import lightning
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from poslab.data.module import Probe
from poslab.diagnostics.base import Diagnostic, Finding, Picture
from poslab.model import LanguageModel
from poslab.pictures.figures import message_figure, to_array
from poslab.pictures.plots import MapPlot, sparse_ticks
from poslab.tasks import Task
from poslab.training.module import TrainingModule, log_scalars

ROWS = "embedding_gradient/rows"


def draw_rows(norms: np.ndarray, step: int) -> Figure:
    """Draw the vocabulary as a grid, coloured by gradient norm; tokens without gradient are white.

    Args:
        norms: (V,), the norm of each row's gradient.
        step: number of updates before the step with this gradient.
    """
    vocab_size = len(norms)
    columns = max(1, math.ceil(math.sqrt(2 * vocab_size)))
    rows = math.ceil(vocab_size / columns)
    grid = np.full(rows * columns, np.nan)
    grid[:vocab_size] = np.where(norms > 0, norms, np.nan)
    height = max(0.6, 4.6 * rows / columns)
    title = f"Token rows with gradient at step {step}: {int((norms > 0).sum())} of {vocab_size}"
    plot = MapPlot(4.6, height, title, "token id = row label + column", "first token of the row", columns, rows)
    top = float(norms.max()) or 1.0
    plot.map(grid.reshape(rows, columns), "viridis", 0.0, top)
    plot.xticks(sparse_ticks(columns), sparse_ticks(columns))
    plot.yticks(sparse_ticks(rows), sparse_ticks(rows) * columns)
    plot.colour_scale("viridis", 0.0, top, "gradient norm")
    return plot.figure


class EmbeddingGradient(Diagnostic):
    """Scalar ``embedding_gradient/rows`` on the logging interval, image ``embedding_gradient/vocabulary``.

    Only the rows of the tokens in the batch receive gradient; if the head is tied to the table, all rows do.
    """

    def __init__(self, every: int = 1) -> None:
        super().__init__(every)
        self._norms: Tensor | None = None
        self._step = 0

    def state_dict(self) -> dict[str, Any]:
        norms = None if self._norms is None else self._norms.float().cpu()
        return {**super().state_dict(), "norms": norms, "step": self._step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._norms, self._step = state_dict.get("norms"), state_dict.get("step", 0)

    def scalar_names(self, task: Task, model: LanguageModel) -> list[str]:
        return [ROWS]

    def on_after_backward(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        step = trainer.global_step
        if step % pl_module.log_every_n_steps or not trainer.is_global_zero:
            return
        seen = pl_module.observed(self.replica)
        gradient = None if seen is None else seen.model.token_embedding.embedding.weight.grad
        if seen is not None and gradient is not None:
            self._norms = torch.linalg.vector_norm(gradient, dim=-1)
            self._step = step
            log_scalars(trainer, {ROWS: float((self._norms > 0).sum())}, seen.loggers)

    def look(self, model: LanguageModel, probe: Probe) -> Iterable[Finding]:
        if self._norms is None:
            yield Picture(
                "embedding_gradient/vocabulary", partial(message_figure, "No gradient yet:\nno step has been taken")
            )
        else:
            yield Picture("embedding_gradient/vocabulary", partial(draw_rows, to_array(self._norms), self._step))
