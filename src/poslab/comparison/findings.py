"""One outcome of a contrast: its pairs of jobs, and their test."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import NamedTuple

from poslab.comparison.axes import order
from poslab.comparison.collect import Job
from poslab.comparison.levels import Cell, Grid, Seed, complete_block
from poslab.comparison.outcomes import AREA, SPEED, Outcome
from poslab.comparison.statistics import Estimate, paired, tested, welch


class OfSetting(NamedTuple):
    """The difference in one matched setting; the estimate is None without two seeds."""

    cell: Cell
    estimate: Estimate | None


@dataclass(frozen=True)
class Finding:
    """One outcome of a contrast.

    Attributes:
        estimate: first minus second, with its test; None if there is none.
        middles: of both levels the median, not as a logarithm, or the mean of a share; None without values.
        agree: number of pairs of jobs whose difference has the sign of the mean, and number of pairs without ties.
        ties: number of pairs without a difference.
        by_setting: the matched settings that have pairs.
        block: the differences by setting and seed, of settings that all have the same seeds.
        spacing: median factor between the two validations around the outcome; 1 if the training loss was read.
    """

    estimate: Estimate | None = None
    middles: tuple[float | None, float | None] = (None, None)
    agree: tuple[int, int] = (0, 0)
    ties: int = 0
    by_setting: tuple[OfSetting, ...] = ()
    block: Mapping[Cell, Mapping[Seed, float]] = field(default_factory=dict)
    spacing: float = 1.0

    @property
    def identical(self) -> bool:
        """Whether no pair of jobs differs."""
        return self.ties > 0 and not self.agree[1]


def read_alike(one: Grid, two: Grid, cells: Sequence[Cell]) -> tuple[Grid, Grid]:
    """Read every curve from the validation set if some can be read only from there.

    A factor between the two ways to read would be taken for a difference of the levels.
    """
    sources = {job.learning.source for side in (one, two) for cell in cells for job in side[cell].values()}
    if not {"train", "validation"} <= sources:
        return one, two

    def read(side: Grid) -> Grid:
        return {
            cell: {seed: replace(job, learning=job.validated) for seed, job in row.items()}
            for cell, row in side.items()
        }

    return read(one), read(two)


def pairs_of(outcome: Outcome, one: Grid, two: Grid, cells: Sequence[Cell]) -> dict[Cell, dict[Seed, float]]:
    """First minus second, by matched setting and seed, of the pairs that completed and both have the outcome."""
    found: dict[Cell, dict[Seed, float]] = {}
    for cell in cells:
        for seed in sorted(one[cell].keys() & two[cell].keys(), key=order):
            jobs = one[cell][seed], two[cell][seed]
            if outcome is AREA and jobs[0].learning.steps != jobs[1].learning.steps:
                continue
            a, b = (outcome.value(job) if job.completed else None for job in jobs)
            if a is not None and b is not None:
                found.setdefault(cell, {})[seed] = a - b
    return found


def finding(outcome: Outcome, one: Grid, two: Grid, cells: Sequence[Cell]) -> Finding:
    """Compare two levels by one outcome, over these matched settings."""
    if len({seed for cell in cells for seed in one[cell].keys() & two[cell].keys()}) < 2:
        return _unpaired(outcome, one, two, cells)
    pairs = pairs_of(outcome, one, two, cells)
    hidden = {
        cell: {seed: outcome.hidden(one[cell][seed]) + outcome.hidden(two[cell][seed]) for seed in row}
        for cell, row in pairs.items()
    }
    estimate = paired(pairs, hidden)
    # All that is said is of the settings that the test is about.
    pairs = {cell: dict(row) for cell, row in tested(pairs).items()} or pairs
    if not pairs:
        sides = ([job for cell in cells for job in side[cell].values()] for side in (one, two))
        first, second = (_middle(outcome, side) for side in sides)
        return Finding(middles=(first, second))
    differences = [value for row in pairs.values() for value in row.values()]
    moved = [value for value in differences if abs(value) > 1e-12]
    mean = fmean(differences)
    by_setting = tuple(OfSetting(cell, paired({cell: row}, hidden)) for cell, row in pairs.items())
    block_cells, block_seeds = complete_block({(cell, seed) for cell, row in pairs.items() for seed in row})
    block = {cell: {seed: pairs[cell][seed] for seed in block_seeds} for cell in block_cells}
    jobs = [(one[cell][seed], two[cell][seed]) for cell, row in pairs.items() for seed in row]
    return Finding(
        estimate=estimate,
        middles=(_middle(outcome, [a for a, _ in jobs]), _middle(outcome, [b for _, b in jobs])),
        agree=(sum(value * mean > 0 for value in moved), len(moved)),
        ties=len(differences) - len(moved),
        by_setting=by_setting,
        block=block,
        spacing=_spacing(outcome, [job for pair in jobs for job in pair]),
    )


def _unpaired(outcome: Outcome, one: Grid, two: Grid, cells: Sequence[Cell]) -> Finding:
    """The finding for two levels that have fewer than two seeds in common."""
    sides, middles, every = [], [], []
    for side in (one, two):
        values: dict[Seed, list[float]] = {}
        hidden: dict[Seed, list[float]] = {}
        for cell in cells:
            for seed, job in side[cell].items():
                value = outcome.value(job) if job.completed else None
                if value is not None:
                    values.setdefault(seed, []).append(value)
                    hidden.setdefault(seed, []).append(outcome.hidden(job))
                    every.append(job)
        whole = [seed for seed, found in values.items() if len(found) == len(cells)]
        sides.append(([fmean(values[seed]) for seed in whole], [fmean(hidden[seed]) / len(cells) for seed in whole]))
        middles.append(_middle(outcome, [job for cell in cells for job in side[cell].values()]))
    (a, hidden_a), (b, hidden_b) = sides
    estimate = welch(a, b, fmean(hidden_a), fmean(hidden_b)) if min(len(a), len(b)) > 1 else None
    return Finding(estimate=estimate, middles=(middles[0], middles[1]), spacing=_spacing(outcome, every))


def _middle(outcome: Outcome, jobs: Sequence[Job]) -> float | None:
    values = [value for job in jobs if job.completed and (value := outcome.value(job)) is not None]
    if not values:
        return None
    return math.exp(median(values)) if outcome.logs else fmean(values)


def _spacing(outcome: Outcome, jobs: Sequence[Job]) -> float:
    """Factor between the validations around the outcome, in the middle of the jobs; 1 for the training loss."""
    if outcome.name not in ("speed", "late") or any(job.learning.source != "validation" for job in jobs):
        return 1.0
    found = [job.learning.quarter if outcome is SPEED else job.learning.nats for job in jobs]
    return median([max(1.0, each.after) / max(1.0, each.before) for each in found if each] or [1.0])
