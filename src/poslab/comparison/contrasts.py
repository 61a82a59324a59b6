"""Two levels of one axis against each other, matched over everything else, and whether the difference is more than
seed spread.

How a contrast is tested, and why so:

- The unit is the seed. Jobs that share a seed share their batches, and often their initial weights, whatever their
  other settings: eight settings of three seeds are three independent observations, not 24. So differences are taken
  within each matched setting and seed, averaged over the settings, and the averages of the seeds are tested.
- Paired t-test where both levels have at least two seeds in common, because what a seed does to both sides cancels;
  Welch's t-test where they have not (sweeps with different seeds, put together), because levels may spread differently.
- On logarithms of steps and losses: effects on them are factors, and their spread grows with their size.
- Steps to 99 % exact match over the settings where every matched job got there, if in the other settings none did;
  the last validation loss over all of them otherwise. One outcome for a contrast, chosen without looking at which
  level is better.
- Exact match past the training length is a share, often of 0: there the differences are plain ones.
- A count of steps is known only to the validation before it. The spread is never taken to be less than what that hides.
- Holm's adjustment over every contrast that was looked at: for an axis without order all pairs of levels, although
  the best level may be all that is spoken of, because the best was chosen from the same data.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, pairwise
from statistics import fmean, median
from typing import Literal, NamedTuple

from poslab.comparison.axes import SEED, Value, is_numeric, order
from poslab.comparison.collect import Job, without_repeats
from poslab.comparison.history import Reached
from poslab.comparison.statistics import TINY, Test, hidden_log_variance, holm, paired_test, welch_test

TASK = "task"
EXACT, LOSS = "val/exact_match", "val/loss"
PAST = "length/past/exact_match"
"""Mean exact match past the training length; no run writes it, `poslab.comparison.past` works it out."""
LEVEL = 0.05
ALL_PAIRS = 3
"""Up to so many levels every pair gets a sentence; beyond, the best against each of the others."""

Cell = tuple[Value | None, ...]
Outcome = Literal["steps", "loss", "past"]
Reason = Literal["no loss", "never alone", "few seeds", "no spread"]
# Jobs of one level by matched setting and seed. More than one where the level has settings that the other lacks.
Grid = dict[Cell, dict[Value | None, list[Job]]]


class Side(NamedTuple):
    """One level's part in a contrast: the median of its outcome (the mean of shares), how many jobs reached 99 % exact
    match.
    """

    middle: float | None = None
    reached: int = 0
    jobs: int = 0


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """``first`` against ``second`` on one axis.

    Attributes:
        task: the task it was taken on, where several are compared.
        reason: why there is no test; None when there is one.
        test: on the logarithm of the outcome, or on the share that is wrong, first minus second; less is better.
        adjusted: its p value after Holm.
        stated: False for one that was only looked at.
        seeds: seeds that were matched, or the smaller number of both sides in Welch's test.
        settings: matched settings of the other axes that the test is about.
        unreached: further ones in which no job of either level reached 99 % exact match.
        agree: of the pairs of jobs, those whose difference has the sign of the mean, and all; (0, 0) without pairs.
        identical: every matched pair of jobs has the same numbers.
        every: the coarsest distance of two validations where a job got good enough.
    """

    axis: str
    task: Value | None
    first: Value
    second: Value
    stated: bool = True
    reason: Reason | None = None
    outcome: Outcome = "loss"
    test: Test | None = None
    adjusted: float = 1.0
    seeds: int = 0
    settings: int = 0
    unreached: int = 0
    agree: tuple[int, int] = (0, 0)
    sides: tuple[Side, Side] = field(default=(Side(), Side()))
    every: int = 0
    identical: bool = False

    @property
    def clear(self) -> bool:
        return self.test is not None and self.adjusted < LEVEL


def contrasts(jobs: Sequence[Job], axes: Sequence[str], outcome: Outcome | None = None) -> list[Contrast]:
    """Every contrast along every axis but the seed; within each task, for a task is a question and not a treatment.

    The outcome is steps or loss, as each contrast allows, unless one is given.
    """
    completed = without_repeats(jobs)
    tasks = sorted({job.settings.get(TASK) for job in completed}, key=order) if TASK in axes else [None]
    found = []
    for axis in axes:
        if axis in (SEED, TASK):
            continue
        for task in tasks:
            here = [job for job in completed if task is None or job.settings.get(TASK) == task]
            others = [other for other in axes if other not in (axis, SEED) and not other.startswith(f"{axis}.")]
            found += _along(axis, task, here, others, outcome)
    tested = [each for each in found if each.test is not None]
    adjusted = iter(holm([each.test.p for each in tested if each.test is not None]))
    return [each if each.test is None else replace(each, adjusted=next(adjusted)) for each in found]


def _along(
    axis: str, task: Value | None, jobs: Sequence[Job], others: Sequence[str], outcome: Outcome | None
) -> list[Contrast]:
    """Neighbouring levels where they have an order; otherwise all pairs, of which those with the best are stated."""
    levels = sorted({job.settings[axis] for job in jobs if axis in job.settings}, key=order)
    if is_numeric(levels):
        pairs = [(above, below, True) for below, above in pairwise(levels)]
    else:
        merit = _merit if outcome is None else partial(_mean, outcome=outcome)
        by_merit = sorted(levels, key=lambda level: merit([job for job in jobs if job.settings.get(axis) == level]))
        few = len(levels) <= ALL_PAIRS
        pairs = [(first, second, few or first == by_merit[0]) for first, second in combinations(by_merit, 2)]
    grids = {level: _grid([job for job in jobs if job.settings.get(axis) == level], others) for level in levels}
    return [
        replace(
            _contrast(grids[first], grids[second], outcome),
            axis=axis,
            task=task,
            first=first,
            second=second,
            stated=stated,
        )
        for first, second, stated in pairs
    ]


def _merit(jobs: Sequence[Job]) -> tuple[float, float, float]:
    """A sort key: the level that gets to 99 % most often, then soonest, then with the least loss."""
    steps = [job.history.reached[EXACT].step for job in jobs if EXACT in job.history.reached]
    losses = [_log(job.metrics[LOSS]) for job in jobs if LOSS in job.metrics]
    mean_steps = fmean(map(_log, steps)) if steps else math.inf
    return -len(steps) / len(jobs), mean_steps, fmean(losses) if losses else math.inf


def _mean(jobs: Sequence[Job], outcome: Outcome) -> float:
    return fmean(_value(job, outcome) for job in jobs)


def _log(value: float) -> float:
    return math.log(max(value, TINY))


def _grid(jobs: Sequence[Job], others: Sequence[str]) -> Grid:
    grid: Grid = defaultdict(lambda: defaultdict(list))
    for job in jobs:
        grid[tuple(job.settings.get(other) for other in others)][job.settings.get(SEED, job.seed)].append(job)
    return {cell: dict(seeds) for cell, seeds in grid.items()}


def _contrast(first: Grid, second: Grid, wanted: Outcome | None) -> Contrast:
    """The contrast of two levels; axis and levels are filled in by the caller."""
    empty = Contrast(axis="", task=None, first="", second="")
    common = [cell for cell in first if cell in second]
    if not common:
        return replace(empty, reason="never alone")
    cells, seeds = complete_block({(cell, seed) for cell in common for seed in first[cell] if seed in second[cell]})
    if len(seeds) >= 2:
        return _paired(empty, first, second, cells, seeds, wanted)
    own = [[seed for seed in grid[common[0]] if all(seed in grid[cell] for cell in common)] for grid in (first, second)]
    if min(map(len, own)) >= 2:
        return _unpaired(empty, first, second, common, (own[0], own[1]), wanted)
    # Nothing to test; what was seen is told all the same.
    shown = [[job for cell in common for jobs in grid[cell].values() for job in jobs] for grid in (first, second)]
    learnt = all(EXACT in job.history.reached for jobs in shown for job in jobs)
    outcome: Outcome = wanted or ("steps" if learnt else "loss")
    return replace(_seen(empty, (shown[0], shown[1]), outcome, len(seeds), common, common), reason="few seeds")


def complete_block(pairs: set[tuple[Cell, Value | None]]) -> tuple[list[Cell], list[Value | None]]:
    """Cells and seeds such that every seed has every cell, by dropping whichever lacks the larger part of the other.

    Where a job is missing its whole setting goes, or its whole seed. Otherwise the seeds would be averages over
    different settings, and differences between settings would pass for differences between seeds.
    """
    pairs = set(pairs)
    while True:
        cells = sorted({cell for cell, _ in pairs}, key=lambda cell: [order(value) for value in cell])
        seeds = sorted({seed for _, seed in pairs}, key=order)
        if len(pairs) == len(cells) * len(seeds):
            return cells, seeds
        of_cell = {cell: sum((cell, seed) in pairs for seed in seeds) / len(seeds) for cell in cells}
        of_seed = {seed: sum((cell, seed) in pairs for cell in cells) / len(cells) for seed in seeds}
        worst_cell, worst_seed = min(cells, key=of_cell.__getitem__), min(seeds, key=of_seed.__getitem__)
        # Settings before seeds: it is the seeds that are counted.
        drop_cell = of_cell[worst_cell] <= of_seed[worst_seed]
        pairs = {(cell, seed) for cell, seed in pairs if (cell != worst_cell if drop_cell else seed != worst_seed)}


def _outcome(
    first: Grid, second: Grid, cells: Sequence[Cell], seeds: tuple[Sequence[Value | None], Sequence[Value | None]]
) -> tuple[Outcome, list[Cell]]:
    """What is tested, and over which settings."""
    reached: dict[Cell, set[bool]] = {
        cell: {
            EXACT in job.history.reached
            for grid, own in ((first, seeds[0]), (second, seeds[1]))
            for job in _jobs(grid, [cell], own)
        }
        for cell in cells
    }
    learnt = [cell for cell in cells if reached[cell] == {True}]
    if learnt and all(len(kinds) == 1 for kinds in reached.values()):
        return "steps", learnt
    return "loss", list(cells)


def _value(job: Job, outcome: Outcome) -> float:
    if outcome == "past":
        return -job.metrics.get(PAST, math.nan)
    return _log(job.history.reached[EXACT].step if outcome == "steps" else job.metrics.get(LOSS, math.nan))


def _hidden(job: Job, outcome: Outcome) -> float:
    if outcome != "steps":
        return 0.0
    reached = job.history.reached[EXACT]
    return hidden_log_variance(reached.before, reached.step)


def _side(jobs: Sequence[Job], outcome: Outcome) -> Side:
    values = [value for job in jobs if math.isfinite(value := _value(job, outcome))]
    reached = sum(EXACT in job.history.reached for job in jobs)
    if not values:
        return Side(None, reached, len(jobs))
    return Side(fmean(map(abs, values)) if outcome == "past" else median(map(math.exp, values)), reached, len(jobs))


def _every(jobs: Sequence[Job]) -> int:
    spans = [reached.step - reached.before for job in jobs if (reached := job.history.reached.get(EXACT))]
    return max(spans, default=0)


class _Seed(NamedTuple):
    """One seed of one level: means over its settings of the log outcome and of the variance that its grid hides."""

    values: list[float]
    hidden: float


def _seed(grid: Grid, cells: Sequence[Cell], seed: Value | None, outcome: Outcome) -> _Seed:
    values = [fmean(_value(job, outcome) for job in grid[cell][seed]) for cell in cells]
    # A mean of n values hides an n-th of what one hides, because each is rounded for itself.
    hidden = [fmean(_hidden(job, outcome) for job in grid[cell][seed]) / len(grid[cell][seed]) for cell in cells]
    return _Seed(values, sum(hidden) / len(cells) ** 2)


def _jobs(grid: Grid, cells: Sequence[Cell], seeds: Sequence[Value | None]) -> list[Job]:
    return [job for cell in cells for seed in seeds for job in grid[cell][seed]]


def _paired(
    empty: Contrast,
    first: Grid,
    second: Grid,
    cells: Sequence[Cell],
    seeds: Sequence[Value | None],
    wanted: Outcome | None,
) -> Contrast:
    outcome, used = (wanted, list(cells)) if wanted else _outcome(first, second, cells, (seeds, seeds))
    jobs = _jobs(first, used, seeds), _jobs(second, used, seeds)
    rows = [(_seed(first, used, seed, outcome), _seed(second, used, seed, outcome)) for seed in seeds]
    pairs = [[a - b for a, b in zip(one.values, two.values, strict=True)] for one, two in rows]
    hidden = fmean(one.hidden + two.hidden for one, two in rows)
    seen = _seen(empty, jobs, outcome, len(seeds), used, cells)
    means = [fmean(row) for row in pairs]
    if not all(map(math.isfinite, means)):
        return replace(seen, reason="no loss")
    test = paired_test(means, hidden)
    every_pair = [pair for row in pairs for pair in row]
    agreeing = sum(pair * fmean(means) > 0 for pair in every_pair)
    return replace(
        seen,
        test=test,
        reason=None if test else "no spread",
        agree=(agreeing, len(every_pair)),
        identical=[_numbers(job, wanted) for job in jobs[0]] == [_numbers(job, wanted) for job in jobs[1]],
    )


def _numbers(job: Job, wanted: Outcome | None) -> tuple[Reached | None, float | None]:
    if wanted is not None:
        return None, _value(job, wanted)
    return job.history.reached.get(EXACT), job.metrics.get(LOSS)


def _unpaired(
    empty: Contrast,
    first: Grid,
    second: Grid,
    cells: Sequence[Cell],
    seeds: tuple[Sequence[Value | None], Sequence[Value | None]],
    wanted: Outcome | None,
) -> Contrast:
    outcome, used = (wanted, list(cells)) if wanted else _outcome(first, second, cells, seeds)
    jobs = _jobs(first, used, seeds[0]), _jobs(second, used, seeds[1])
    sides = [
        [_seed(grid, used, seed, outcome) for seed in own] for grid, own in ((first, seeds[0]), (second, seeds[1]))
    ]
    means = [[fmean(seed.values) for seed in side] for side in sides]
    seen = _seen(empty, jobs, outcome, min(map(len, sides)), used, cells)
    if not all(math.isfinite(mean) for side in means for mean in side):
        return replace(seen, reason="no loss")
    hidden = [fmean(seed.hidden for seed in side) for side in sides]
    test = welch_test(means[0], means[1], hidden[0], hidden[1])
    return replace(seen, test=test, reason=None if test else "no spread")


def _seen(
    empty: Contrast,
    jobs: tuple[list[Job], list[Job]],
    outcome: Outcome,
    seeds: int,
    used: Sequence[Cell],
    cells: Sequence[Cell],
) -> Contrast:
    return replace(
        empty,
        outcome=outcome,
        seeds=seeds,
        settings=len(used),
        unreached=len(cells) - len(used),
        sides=(_side(jobs[0], outcome), _side(jobs[1], outcome)),
        every=_every([*jobs[0], *jobs[1]]) if outcome == "steps" else 0,
    )
