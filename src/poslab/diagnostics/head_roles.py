"""What each head attends to: the previous token, the first, itself, all equally, or the token to copy."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import lightning
import numpy as np
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from torch import Tensor

from poslab.data.module import Probe
from poslab.diagnostics.base import TOKENS, Diagnostic, Finding, Picture, Scalars
from poslab.diagnostics.callback import inspecting
from poslab.diagnostics.head_ablation import HeadAblation
from poslab.evaluation.heads import ROLES, RoleSums, mean_roles, role_sums
from poslab.model import LanguageModel
from poslab.pictures.plots import MapPlot
from poslab.tasks import Task

WEAK = 0.5
"""If the strongest role of a head is below this, the head is ``mixed``."""
TIE = 0.05
"""If the two strongest roles differ by at most this, the head is ``mixed``."""
MIXED = "mixed"
COLOURS = dict(zip(ROLES, ("#4e79a7", "#f28e2b", "#b07aa1", "#9c755f", "#59a14f"), strict=True)) | {MIXED: "#bab0ac"}
CELLS_AT_ONCE = 2**20
"""Attention weights of one head that are computed together: those of many short sequences, or of one long one."""

Roles = Sequence[Sequence[Mapping[str, float]]]
"""The value of each role, by layer and head."""


def tag(layer: int, head: int, role: str) -> str:
    return f"head_roles/layer_{layer}/head_{head}/{role}"


def strongest_role(roles: Mapping[str, float]) -> tuple[str, float]:
    """Name and value of a head's strongest role; ``mixed`` if it is below `WEAK` or another is within `TIE`."""
    (name, value), (_, second) = sorted(roles.items(), key=lambda item: item[1], reverse=True)[:2]
    return (MIXED if value < WEAK or value - second <= TIE else name), value


def draw_roles(
    roles: Roles,
    n_sequences: int,
    step: int,
    costs: Mapping[int, Sequence[Sequence[float]]],
    start: Roles | None = None,
) -> Figure:
    """Draw a grid of layers and heads, each coloured by its strongest role; stronger roles have deeper colours.

    Args:
        roles: of the present model.
        n_sequences: number of sequences that the roles are means over.
        step: updates so far.
        costs: rise of the loss without a head, by step, layer and head; shown if measured at this step.
        start: of the untrained model, whose value of the same role is shown too; None to leave it out.
    """
    n_layers, n_heads = len(roles), len(roles[0])
    cost = costs.get(step)
    title = f"Each head's strongest role, mean over {n_sequences} sequences"
    title += " (before training)" if start else ""
    title += "; loss: rise with its mean output" if cost else ""
    size = (1.08 if start else 0.92) * n_heads, 0.62 * n_layers
    plot = MapPlot(*size, title, "head", "layer", n_heads, n_layers, colour_bar=False, framed=False)
    colours = np.ones((n_layers, n_heads, 4))
    for layer, of_layer in enumerate(roles):
        for head, values in enumerate(of_layer):
            name, value = strongest_role(values)
            strength = 0.25 + 0.55 * value
            colours[layer, head, :3] = 1 - strength * (1 - np.array(to_rgb(COLOURS[name])))
            strongest = max(values, key=values.__getitem__)
            lines = [name.replace("_", " "), f"{value:.2f}"]
            if start:
                lines[1] += f" ({start[layer][head][strongest]:.2f})"
            if name == MIXED:
                lines[1] += " " + strongest.removesuffix("_token")
            if cost:
                lines.append(f"loss {cost[layer][head]:+.3f}")
            plot.write(head, layer, "\n".join(lines))
    plot.paint((255 * colours).round().astype(np.uint8))
    upright = [((x, -0.5), (x, n_layers - 0.5)) for x in np.arange(n_heads + 1) - 0.5]
    level = [((-0.5, y), (n_heads - 0.5, y)) for y in np.arange(n_layers + 1) - 0.5]
    plot.lines(np.array(upright + level), "white", 2.0)
    plot.xticks(range(n_heads), range(n_heads))
    plot.yticks(range(n_layers), range(n_layers))
    return plot.figure


class HeadRoles(Diagnostic):
    """Scalars ``head_roles/layer_<i>/head_<j>/<role>`` and image ``head_roles/summary``, layers counted from 0.

    The means are over the first sequences of the longest length in the validation set. An untrained head has roles
    too: with even weights over T tokens, ``copy`` is about 1 / T, and in short sequences ``first_token`` is large. So
    the summary shows the value before training beside each value. It also shows the rise of the loss if the head's
    output is replaced by its mean, at the steps at which `HeadAblation` looks, if that diagnostic is chosen.

    Args:
        every: validations from one look to the next; 0 switches the diagnostic off.
        sequences: largest number of sequences; None: 16, or fewer long ones, with `TOKENS` tokens in total but at
            least 4.

    Raises:
        ValueError: ``sequences < 1``.
    """

    def __init__(self, every: int = 1, sequences: int | None = None) -> None:
        super().__init__(every)
        if sequences is not None and sequences < 1:
            raise ValueError(f"sequences={sequences} must be at least 1")
        self.sequences = sequences
        self._start: list[list[dict[str, float]]] | None = None
        self._costs: Mapping[int, list[list[float]]] = {}
        self._batches: list[Tensor] = []

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "start": self._start}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        # Older checkpoints do not have it.
        self._start = state_dict.get("start")

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        for diagnostic in inspecting(trainer, self.replica):
            if isinstance(diagnostic, HeadAblation):
                # The same mapping, so that the order of the two diagnostics does not matter: pictures are drawn later.
                self._costs = diagnostic.costs

    def scalar_names(self, task: Task, model: LanguageModel) -> list[str]:
        layers = enumerate(model.attention_layers())
        return [
            tag(layer, head, role) for layer, attention in layers for head in range(attention.n_heads) for role in ROLES
        ]

    def look(self, model: LanguageModel, probe: Probe) -> Iterable[Finding]:
        batches = self._batches or self._choose(probe)
        layers: list[list[RoleSums]] = [[] for _ in model.attention_layers()]
        for tokens in batches:
            # Computed again at each look, because they take as much memory as the weights of a long context.
            cells = torch.from_numpy(np.stack([probe.data.task.answer_cells(row.numpy()) for row in tokens]))
            of_batch = partial(role_sums, answer_cells=cells)
            found = model.attention_maps(tokens.to(probe.tokens.device), keep=of_batch)
            for layer, sums in zip(layers, found, strict=True):
                layer.append(sums)
        means = [mean_roles(layer) for layer in layers]
        roles = [
            [
                {role: float(of_role[head]) for role, of_role in of_layer.items()}
                for head in range(len(of_layer["self"]))
            ]
            for of_layer in means
        ]
        yield Scalars(
            {
                tag(layer, head, role): value
                for layer, of_layer in enumerate(roles)
                for head, values in enumerate(of_layer)
                for role, value in values.items()
            }
        )
        n_sequences = sum(map(len, batches))
        drawn = partial(draw_roles, roles, n_sequences, self._last_look or 0, self._costs, self._start)
        yield Picture("head_roles/summary", drawn)
        if self._last_look == 0:
            self._start = roles

    def _choose(self, probe: Probe) -> list[Tensor]:
        """Choose the sequences, in batches whose attention weights fit into memory."""
        n_tokens = probe.tokens.shape[1]
        rows = torch.cat([batch.tokens for batch in probe.data.validation.batches if batch.tokens.shape[1] == n_tokens])
        chosen = max(4, min(16, TOKENS // n_tokens)) if self.sequences is None else self.sequences
        self._batches = list(rows[:chosen].split(max(1, CELLS_AT_ONCE // n_tokens**2)))
        return self._batches
