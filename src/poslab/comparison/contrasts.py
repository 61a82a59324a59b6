"""Compare two levels of one axis with all other settings matched, and test whether the difference exceeds seed spread.

How a contrast is tested:

- The unit of observation is the seed. Jobs with the same seed share their batches and often their initial weights, so
  eight settings with three seeds are three independent observations, not 24. Differences are computed within each
  matched setting and seed and averaged over the settings; the averages of the seeds are tested.
- If both levels have at least two seeds in common, the test is a paired t-test, because effects of the seed on both
  sides cancel. Otherwise (sweeps with different seeds compared together) it is Welch's t-test, because the variances of
  the levels may differ.
- Steps and losses are compared as logarithms: effects on them are factors, and their spread grows with their size.
- Each contrast has one outcome, chosen without regard to which level is better. It is the number of steps to 99 % exact
  match, over the settings in which every matched job reached it, provided that in each other setting no job did. If
  there is a setting in which only some jobs did, it is the last validation loss over all settings.
- Exact match beyond the training length is a share and often 0, so differences are taken without a logarithm.
- A number of steps is known only up to the interval between two validations. The variance used in a test is at least
  the variance of this rounding.
- Holm's adjustment covers all contrasts that were computed. For an axis without order, these are all pairs of levels,
  even if only comparisons with the best level are stated, because the best level was chosen from the same data.
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
"""Mean exact match beyond the training length; computed by `poslab.comparison.past`, not stored in runs."""
LEVEL = 0.05
"""Significance level: a difference is stated if its adjusted p value is below this."""
ALL_PAIRS = 3
"""With up to this many levels, every pair is stated; with more, only the best level against each of the others."""

Cell = tuple[Value | None, ...]
Outcome = Literal["steps", "loss", "past"]
Reason = Literal["no loss", "never alone", "few seeds", "no spread"]
Grid = dict[Cell, dict[Value | None, list[Job]]]
"""Jobs of one level by matched setting and seed; several jobs if this level has settings that the other does not."""


class Side(NamedTuple):
    """Summary of one level in a contrast.

    Attributes:
        middle: the median of the outcome; for exact match beyond the training length the mean; None without values.
        reached: number of jobs that reached 99 % exact match.
        jobs: number of jobs.
    """

    middle: float | None = None
    reached: int = 0
    jobs: int = 0


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Comparison of the levels ``first`` and ``second`` of one axis.

    Attributes:
        axis: name of the setting.
        task: the task of the compared jobs if several tasks are compared, else None.
        first, second: the levels.
        stated: whether the contrast gets a sentence; False if it only counts in Holm's adjustment.
        reason: why there is no test; None if there is one.
        outcome: what is compared: number of steps, validation loss, or exact match beyond the training length.
        test: the test of first minus second, on the logarithm of the outcome or, for exact match, on its negative; a
            smaller value is better.
        adjusted: the p value after Holm's adjustment.
        seeds: number of matched seeds; in Welch's test the smaller number of seeds of the two levels.
        settings: number of matched settings of the other axes that the test covers.
        unreached: number of further settings in which no job of either level reached 99 % exact match.
        agree: number of job pairs whose difference has the same sign as the mean, and number of pairs; (0, 0) without
            pairs.
        sides: summaries of both levels.
        every: the largest number of steps between two validations at the point where a job reached 99 % exact match.
        identical: whether every matched pair of jobs has the same results.
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
        """Whether the difference is significant."""
        return self.test is not None and self.adjusted < LEVEL


def contrasts(jobs: Sequence[Job], axes: Sequence[str], outcome: Outcome | None = None) -> list[Contrast]:
    """Compute all contrasts along every axis except seed and task, with Holm-adjusted p values.

    Tasks are different questions, so jobs are compared only within a task.

    Args:
        jobs: jobs of any status; only completed ones are used.
        axes: names of the settings that vary.
        outcome: the outcome to compare; None: steps or loss, chosen for each contrast as the module docstring says.
    """
    completed = without_repeats(jobs)
    tasks = sorted({job.settings.get(TASK) for job in completed}, key=order) if TASK in axes else [None]
    found = []
    for axis in axes:
        if axis in (SEED, TASK):
            continue
        for task in tasks:
            of_task = [job for job in completed if task is None or job.settings.get(TASK) == task]
            others = [other for other in axes if other not in (axis, SEED) and not other.startswith(f"{axis}.")]
            found += _contrasts_of_axis(axis, task, of_task, others, outcome)
    tested = [each for each in found if each.test is not None]
    adjusted = iter(holm([each.test.p for each in tested if each.test is not None]))
    return [each if each.test is None else replace(each, adjusted=next(adjusted)) for each in found]


def _contrasts_of_axis(
    axis: str, task: Value | None, jobs: Sequence[Job], others: Sequence[str], outcome: Outcome | None
) -> list[Contrast]:
    """Contrasts of neighbouring levels of a numeric axis, or of all pairs of levels of any other axis.

    Of more than `ALL_PAIRS` levels, only the pairs with the best level are stated.
    """
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
    """A sort key, smallest for the best level: most jobs at 99 % exact match, then fewest steps, then lowest loss."""
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
    """The contrast of two levels; the caller fills in the axis and the levels."""
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
    # Too few seeds for a test, but the contrast still describes both levels.
    shown = [[job for cell in common for jobs in grid[cell].values() for job in jobs] for grid in (first, second)]
    learned = all(EXACT in job.history.reached for jobs in shown for job in jobs)
    outcome: Outcome = wanted or ("steps" if learned else "loss")
    return replace(_described(empty, (shown[0], shown[1]), outcome, len(seeds), common, common), reason="few seeds")


def complete_block(pairs: set[tuple[Cell, Value | None]]) -> tuple[list[Cell], list[Value | None]]:
    """Select cells (settings) and seeds such that a pair of jobs exists for every selected cell and seed.

    As long as pairs are missing, the cell or the seed with the smallest share of existing pairs is dropped. Otherwise
    the seeds would be averages over different settings, and differences between settings would look like differences
    between seeds.
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
        # If equal, drop the cell: the number of seeds is the sample size of the test.
        drop_cell = of_cell[worst_cell] <= of_seed[worst_seed]
        pairs = {(cell, seed) for cell, seed in pairs if (cell != worst_cell if drop_cell else seed != worst_seed)}


def _outcome(
    first: Grid, second: Grid, cells: Sequence[Cell], seeds: tuple[Sequence[Value | None], Sequence[Value | None]]
) -> tuple[Outcome, list[Cell]]:
    """The outcome that is tested, and the settings over which it is tested."""
    reached: dict[Cell, set[bool]] = {
        cell: {
            EXACT in job.history.reached
            for grid, own in ((first, seeds[0]), (second, seeds[1]))
            for job in _jobs(grid, [cell], own)
        }
        for cell in cells
    }
    learned = [cell for cell in cells if reached[cell] == {True}]
    if learned and all(len(kinds) == 1 for kinds in reached.values()):
        return "steps", learned
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


def _validation_interval(jobs: Sequence[Job]) -> int:
    spans = [reached.step - reached.before for job in jobs if (reached := job.history.reached.get(EXACT))]
    return max(spans, default=0)


class _Seed(NamedTuple):
    """One seed of one level.

    Attributes:
        values: the outcome in each setting, on the scale of the test.
        hidden: variance of the mean of the values that is due to rounding to whole validations.
    """

    values: list[float]
    hidden: float


def _seed(grid: Grid, cells: Sequence[Cell], seed: Value | None, outcome: Outcome) -> _Seed:
    values = [fmean(_value(job, outcome) for job in grid[cell][seed]) for cell in cells]
    # The jobs are rounded independently, so the rounding variance of a mean of n values is 1/n of that of one value.
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
    described = _described(empty, jobs, outcome, len(seeds), used, cells)
    means = [fmean(row) for row in pairs]
    if not all(map(math.isfinite, means)):
        return replace(described, reason="no loss")
    test = paired_test(means, hidden)
    differences = [difference for row in pairs for difference in row]
    agreeing = sum(difference * fmean(means) > 0 for difference in differences)
    return replace(
        described,
        test=test,
        reason=None if test else "no spread",
        agree=(agreeing, len(differences)),
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
    described = _described(empty, jobs, outcome, min(map(len, sides)), used, cells)
    if not all(math.isfinite(mean) for side in means for mean in side):
        return replace(described, reason="no loss")
    hidden = [fmean(seed.hidden for seed in side) for side in sides]
    test = welch_test(means[0], means[1], hidden[0], hidden[1])
    return replace(described, test=test, reason=None if test else "no spread")


def _described(
    empty: Contrast,
    jobs: tuple[list[Job], list[Job]],
    outcome: Outcome,
    seeds: int,
    used: Sequence[Cell],
    cells: Sequence[Cell],
) -> Contrast:
    """Fill in everything that does not depend on a test."""
    return replace(
        empty,
        outcome=outcome,
        seeds=seeds,
        settings=len(used),
        unreached=len(cells) - len(used),
        sides=(_side(jobs[0], outcome), _side(jobs[1], outcome)),
        every=_validation_interval([*jobs[0], *jobs[1]]) if outcome == "steps" else 0,
    )
