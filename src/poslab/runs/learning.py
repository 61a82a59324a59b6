"""How fast a run learned, read from its ``metrics.csv``: steps to a loss, and the area under the curve.

The training batches of most runs are drawn anew at every step, so the loss of a batch before its update is an unbiased
look at new data. There are many more of these losses than validations, so they tell the steps more exactly.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from poslab.config.identity import flat

QUARTER = 0.25
"""A run has learned something of its task when its loss is below this share of the loss at the start."""
NATS = 0.1
"""A second loss, near the end of the curve: with it one sees curves that cross."""
COLUMNS = ("step", "val/loss", "train/loss", "train/loss_mean")
"""The columns of ``metrics.csv`` that are read."""

# What makes the training batches differ from the validation set, by setting, and the values with which they do not.
_UNFIT: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "task.min_length": ("batches of several lengths", (None,)),
    "task.min_seq_len": ("batches of several lengths", (None,)),
    "model.dropout": ("dropout", (None, 0)),
    "pos.train_offset": ("random offsets", (None, "none")),
    "pos.train_positions": ("random positions", (None, "none")),
    "data.holdout": ("rows that are only in the validation set", (None, 0)),
}


class Crossing(NamedTuple):
    """Where a curve falls below a loss.

    Attributes:
        step: the step, log-linear between the two logged steps around it.
        before, after: the step of the last value above the loss, and that of the first value below it.
    """

    step: float
    before: float
    after: float


@dataclass(frozen=True)
class Learning:
    """How fast a run learned.

    Attributes:
        quarter: where the loss falls below a quarter of its start; None if it does not.
        nats: where the loss falls below 0.1 nats; None if it does not.
        area: sum over the steps of loss / loss at the start, in steps at the loss of the start; None for a curve with
            gaps at an end.
        source: the losses that were read: of the training batches, or of the validation set; None without any.
        steps: the last step of the curve.
        reason: why the training batches were not read, or why nothing is known; empty if the batches were read.
    """

    quarter: Crossing | None = None
    nats: Crossing | None = None
    area: float | None = None
    source: Literal["train", "validation"] | None = None
    steps: float = 0.0
    reason: str = ""

    def stored(self) -> dict[str, Any]:
        """As ``learning`` in ``result.json``."""
        return {
            "steps_to_quarter": self.quarter and self.quarter.step,
            "steps_to_0.1": self.nats and self.nats.step,
            "area": self.area,
            "source": self.source,
            "reason": self.reason or None,
        }


class Curve(NamedTuple):
    """Losses by step; each is the mean over a number of steps, its weight."""

    steps: Sequence[float]
    losses: Sequence[float]
    weights: Sequence[float]


def learning_of(rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any], validated: bool = False) -> Learning:
    """How fast a run learned, from the rows of its ``metrics.csv``.

    Args:
        rows: texts or numbers by column, in the order of the steps.
        config: the run's configuration.
        validated: read the validation loss in any case, for a comparison with a run that has nothing else.
    """
    validation = _column(rows, "val/loss")
    if not validation or validation[0][0] != 0 or validation[0][1] <= 0:
        return Learning(reason="the validation loss at step 0 is missing")
    start = validation[0][1]
    reason = unlike_validation(config) or ("compared with runs whose training batches are unlike" if validated else "")
    losses = [] if reason else _column(rows, "train/loss")
    if not reason and len(losses) < 2:
        reason = "the training loss is missing"
    if reason:
        curve = _samples(validation)
    else:
        windows = _column(rows, "train/loss_mean")
        # A run that was resumed from an older version has windows only in its later part.
        curve = _windows(windows) if [s for s, _ in windows] == [s for s, _ in losses] else _samples(losses)
    fitted = decreasing(curve.losses, curve.weights)
    last = max(validation[-1][0], losses[-1][0] if losses else 0.0)
    return Learning(
        quarter=crossing(curve.steps, fitted, QUARTER * start),
        nats=crossing(curve.steps, fitted, NATS),
        area=_area(curve, [step for step, _ in losses] or curve.steps, last, start),
        source="validation" if reason else "train",
        steps=last,
        reason=reason,
    )


def unlike_validation(config: Mapping[str, Any]) -> str:
    """What makes the training batches of a run unlike its validation set; empty if they are alike."""
    settings = flat(config)
    return ", ".join(dict.fromkeys(text for key, (text, alike) in _UNFIT.items() if settings.get(key) not in alike))


def decreasing(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The decreasing sequence with the smallest weighted sum of squared distances to ``values``.

    Source: pool adjacent violators, Barlow et al. 1972, Statistical Inference under Order Restrictions.
    """
    pools: list[tuple[float, float, int]] = []  # mean, weight, number of values
    for value, weight in zip(values, weights, strict=True):
        mean, total, n = value, weight, 1
        while pools and pools[-1][0] < mean:
            last, of_last, n_last = pools.pop()
            mean, total, n = (last * of_last + mean * total) / (of_last + total), of_last + total, n_last + n
        pools.append((mean, total, n))
    return [mean for mean, _, n in pools for _ in range(n)]


def crossing(steps: Sequence[float], losses: Sequence[float], level: float) -> Crossing | None:
    """Where a decreasing curve falls below a level, log-linear between two steps; None if it does not."""
    at = next((at for at, loss in enumerate(losses) if loss < level), None)
    if at is None:
        return None
    if at == 0:
        return Crossing(steps[0], steps[0], steps[0])
    above, below = math.log(losses[at - 1]), math.log(max(losses[at], 1e-12))
    share = (above - math.log(level)) / (above - below)
    return Crossing(steps[at - 1] + share * (steps[at] - steps[at - 1]), steps[at - 1], steps[at])


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    """The finite numbers of a column with their steps."""
    found = []
    for row in rows:
        try:
            step, value = float(row["step"]), float(row[name])
        except (KeyError, TypeError, ValueError):
            continue
        if math.isfinite(step) and math.isfinite(value):
            found.append((step, value))
    return found


def _samples(losses: Sequence[tuple[float, float]]) -> Curve:
    return Curve([step for step, _ in losses], [loss for _, loss in losses], [1.0] * len(losses))


def _windows(means: Sequence[tuple[float, float]]) -> Curve:
    """Means over the steps since the logged step before, each placed at the middle of its window."""
    steps, losses, weights, last = [], [], [], -1.0
    for step, mean in means:
        steps.append((last + 1 + step) / 2)
        losses.append(mean)
        weights.append(step - last)
        last = step
    return Curve(steps, losses, weights)


def _area(curve: Curve, logged: Sequence[float], last: float, start: float) -> float | None:
    """The sum of the losses of all steps over the loss at the start; between samples the loss is a straight line.

    None if the curve does not begin at step 0, or ends more than one interval before the last step.
    """
    widest = max((after - before for before, after in pairwise(logged)), default=0.0)
    if logged[0] > 0 or last - logged[-1] > widest:
        return None
    if sum(curve.weights) == logged[-1] + 1:
        return sum(weight * loss for weight, loss in zip(curve.weights, curve.losses, strict=True)) / start
    lines = (
        (after - before) * (one + two) / 2
        for (before, after), (one, two) in zip(pairwise(curve.steps), pairwise(curve.losses), strict=True)
    )
    return (sum(lines) + (curve.losses[0] + curve.losses[-1]) / 2) / start
