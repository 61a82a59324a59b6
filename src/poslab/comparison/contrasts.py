"""Compare two levels of one axis with all other settings matched, and test whether they differ.

How a contrast is tested:

- The unit of observation is the seed. Jobs with the same seed share their batches and often their initial weights, so
  eight settings with three seeds are three independent observations, not 24. Differences are taken within each matched
  setting and seed, and averaged over the settings with equal weights.
- If both levels have at least two seeds in common, the test is a paired t-test, because effects of the seed on both
  sides cancel. Otherwise (sweeps with different seeds compared together) it is Welch's t-test.
- Steps, areas and losses are compared as logarithms: effects on them are factors, and their spread grows with their
  size.
- Each contrast has one primary outcome, chosen by a rule that does not look at which level is better: exact match past
  the training length where that was measured; else whether the task is learned, if the counts differ clearly; else the
  steps to a quarter of the start loss; else, if fewer than two seeds have pairs that get there, the area under the
  curve. Holm's adjustment covers the primary outcomes of all contrasts. Other outcomes are at most suggestive.
- If the difference itself depends on the setting, the settings are reported one by one. These tests of interactions
  are a family of their own in Holm's adjustment.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import Any, Literal

from poslab.comparison.axes import SEED, Value, is_numeric, order
from poslab.comparison.collect import INVALID, Job, distinct
from poslab.comparison.findings import Finding, finding, pairs_of, read_alike
from poslab.comparison.levels import Cell, Grid, Level, Seed, grid, level_of, own_options
from poslab.comparison.outcomes import AREA, EVERY, Name, learned
from poslab.comparison.statistics import holm, interaction, sign_test
from poslab.comparison.tuning import Chosen, merit, tuned

TASK = "task"
LEVEL = 0.05
"""Significance level."""
ALL_PAIRS = 3
"""With up to this many values of an axis without order, every pair is stated; with more, only those with the best."""
LEAST_DISCORDANT = 6
"""With fewer seeds in which only one level learned, a sign test cannot fall below p = 0.05."""

Reason = Literal["no curve", "none completed", "never alone", "few seeds", "no spread"]


@dataclass(frozen=True)
class Counts:
    """How many jobs of one level learned the task, of those of which it is known, and how all others ended."""

    learned: int = 0
    known: int = 0
    jobs: int = 0
    incomplete: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """Comparison of two levels of one axis.

    Attributes:
        axis: name of the setting.
        task: the task of the compared jobs if several tasks are compared, else None.
        first, second: the levels.
        others: the axes whose values are matched.
        stated: whether the contrast gets a sentence; False if it only counts in Holm's adjustment.
        outcome: name of the primary outcome.
        findings: by outcome, all that could be tested or described, without ``learned``.
        counts: of both levels.
        discordant: number of seeds of which only the first level learned, and only the second.
        reason: why there is no test of the primary outcome; None if there is one.
        p: its p value; None without a test.
        adjusted: the p value after Holm's adjustment.
        family: number of tests that the adjustment covers.
        interaction: p value after Holm's adjustment that the difference depends on the setting; None if untested.
        seeds: number of matched seeds; in Welch's test the smaller number of seeds of the two levels.
        settings: number of matched settings that the test of the primary outcome covers.
        unlearned: matched settings in which no job of either level learned, if some did in another one.
        where_unlearned: the levels of other axes with which no job learned.
        chosen: of each level, the value of the tuning axes for each half of the seeds.
    """

    axis: str
    task: Value | None = None
    first: Level
    second: Level
    others: tuple[str, ...]
    stated: bool = True
    outcome: Name = "speed"
    findings: dict[Name, Finding] = field(default_factory=dict)
    counts: tuple[Counts, Counts] = (Counts(), Counts())
    discordant: tuple[int, int] = (0, 0)
    reason: Reason | None = None
    p: float | None = None
    adjusted: float | None = None
    family: int = 1
    interaction: float | None = None
    seeds: int = 0
    settings: int = 0
    unlearned: tuple[Cell, ...] = ()
    where_unlearned: tuple[tuple[str, Value], ...] = ()
    chosen: tuple[Chosen, Chosen] | None = None

    @property
    def primary(self) -> Finding:
        """The finding on the primary outcome; empty for ``learned``, which has counts instead."""
        return self.findings.get(self.outcome, Finding())

    @property
    def depends(self) -> bool:
        """Whether the difference depends on the setting: clearly so, or both signs occur and each of them clearly."""
        if self.interaction is not None and self.interaction < LEVEL:
            return True
        estimates = [each.estimate for each in self.primary.by_setting if each.estimate is not None]
        if len({each.mean > 0 for each in estimates}) < 2:
            return False
        clear = {each.mean > 0 for each in estimates if each.p < LEVEL / len(estimates)}
        return len(clear) == 2


def contrasts(jobs: Sequence[Job], axes: Sequence[str], tune: Sequence[str] = ()) -> list[Contrast]:
    """Compute all contrasts along every axis except seed, task and tuning axes, with Holm-adjusted p values.

    Tasks are different questions, so jobs are compared only within a task.

    Args:
        jobs: jobs of any status.
        axes: names of the settings that vary.
        tune: axes along which each level is compared at its own best value.
    """
    used = distinct(jobs)
    tasks = sorted({job.settings[TASK] for job in used if TASK in job.settings}, key=order) if TASK in axes else [None]
    found = []
    for axis in axes:
        if axis in (SEED, TASK, *tune):
            continue
        for task in tasks:
            of_task = [job for job in used if task is None or job.settings.get(TASK) == task]
            found += _of_axis(axis, task, of_task, axes, tune)
    return _adjusted(found)


def _adjusted(found: Sequence[Contrast]) -> list[Contrast]:
    """With p values by Holm's method: primary outcomes are one family, interactions another."""
    p_values = [each.p for each in found if each.p is not None]
    primary = iter(holm(p_values))
    tests = [interaction(each.primary.block) for each in found]
    interactions = iter(holm([p for p in tests if p is not None]))
    return [
        replace(
            each,
            adjusted=None if each.p is None else next(primary),
            family=max(1, len(p_values)),
            interaction=None if test is None else next(interactions),
        )
        for each, test in zip(found, tests, strict=True)
    ]


def _of_axis(
    axis: str, task: Value | None, jobs: Sequence[Job], axes: Sequence[str], tune: Sequence[str]
) -> list[Contrast]:
    """Contrasts of neighbouring levels of a numeric axis, or of all pairs of levels of any other axis."""
    own = own_options(axis, [each for each in axes if each not in tune], [job for job in jobs if job.judged])
    others = [other for other in axes if other not in (axis, SEED, *own, *tune)]
    by_level: dict[Level, list[Job]] = {}
    for job in jobs:
        level = level_of(job, axis, own)
        if level is not None:
            by_level.setdefault(level, []).append(job)
    levels = sorted((level for level in by_level if any(job.judged for job in by_level[level])), key=lambda x: x.order)
    numeric = is_numeric(level.value for level in levels)
    if numeric:
        pairs = [(above, below, True) for below, above in pairwise(levels)]
    else:
        by_merit = sorted(levels, key=lambda level: merit(by_level[level]))
        few = len({level.value for level in levels}) <= ALL_PAIRS
        # Variants of one value are compared along the axis in which they differ.
        pairs = [
            (first, second, few or first == by_merit[0])
            for first, second in combinations(by_merit, 2)
            if first.value != second.value
        ]
    grids: dict[Level, tuple[Grid, Chosen | None]] = {}
    for level in levels:
        here = [job for job in by_level[level] if job.judged]
        grids[level] = (
            tuned(here, others, [each for each in tune if each in axes]) if tune else (grid(here, others), None)
        )
    return [
        replace(
            _contrast(axis, first, second, grids[first][0], grids[second][0], others),
            task=task,
            stated=stated,
            counts=(_counts(by_level[first], grids[first][0]), _counts(by_level[second], grids[second][0])),
            chosen=None if not tune else (grids[first][1] or {}, grids[second][1] or {}),
        )
        for first, second, stated in pairs
    ]


def _counts(jobs: Sequence[Job], judged: Grid) -> Counts:
    known = [found for row in judged.values() for job in row.values() if (found := learned(job)) is not None]
    started = [job for job in jobs if job.status != INVALID]
    incomplete = Counter(job.status for job in started if not job.completed)
    return Counts(sum(known), len(known), len(started), dict(sorted(incomplete.items())))


def _contrast(axis: str, first: Level, second: Level, one: Grid, two: Grid, others: Sequence[str]) -> Contrast:
    empty = Contrast(axis=axis, first=first, second=second, others=tuple(others))
    cells = sorted((cell for cell in one if cell in two), key=lambda cell: [order(value) for value in cell])
    if not cells:
        return replace(empty, reason="never alone" if one and two else "few seeds")
    one, two = read_alike(one, two, cells)
    findings = {name: finding(outcome, one, two, cells) for name, outcome in EVERY.items()}
    ahead, behind = _discordant(one, two, cells)
    described = replace(empty, findings=findings, discordant=(ahead, behind), **_unlearned(one, two, cells, others))
    seeds = {seed for cell in cells for seed in one[cell] if seed in two[cell]}
    tested = [name for name, each in findings.items() if each.estimate is not None]
    p = sign_test(ahead, behind)
    if "past" not in tested and ahead + behind >= LEAST_DISCORDANT and p < LEVEL:
        return replace(described, outcome="learned", p=p, seeds=len(seeds), settings=len(cells))
    outcome: Name = "past" if "past" in tested else "speed" if "speed" in tested else "area"
    found = findings[outcome]
    described = replace(described, outcome=outcome, seeds=len(seeds), settings=len(found.by_setting) or len(cells))
    if found.estimate is not None:
        return replace(described, p=found.estimate.p, seeds=found.estimate.seeds)
    completed = [job for side in (one, two) for cell in cells for job in side[cell].values() if job.completed]
    if not completed:
        return replace(described, reason="none completed")
    if all(AREA.value(job) is None for job in completed):
        return replace(described, reason="no curve")
    spread = any(len(each) > 1 for each in pairs_of(EVERY[outcome], one, two, cells).values())
    return replace(described, reason="no spread" if spread else "few seeds")


def _discordant(one: Grid, two: Grid, cells: Sequence[Cell]) -> tuple[int, int]:
    """Number of seeds with which more jobs of the first level learned than of the second, and the other way round."""
    leads: Counter[Seed] = Counter()
    for cell in cells:
        for seed in one[cell].keys() & two[cell].keys():
            a, b = learned(one[cell][seed]), learned(two[cell][seed])
            if a is not None and b is not None:
                leads[seed] += a - b
    return sum(lead > 0 for lead in leads.values()), sum(lead < 0 for lead in leads.values())


def _unlearned(one: Grid, two: Grid, cells: Sequence[Cell], others: Sequence[str]) -> dict[str, Any]:
    """The settings in which nothing learned beside others in which something did."""
    some = {cell: any(learned(job) for side in (one, two) for job in side[cell].values()) for cell in cells}
    if not any(some.values()) or all(some.values()):
        return {}
    where = [
        (axis, value)
        for at, axis in enumerate(others)
        for value in sorted({cell[at] for cell in cells}, key=order)
        if value is not None and not any(some[cell] for cell in cells if cell[at] == value)
    ]
    return {"unlearned": tuple(cell for cell in cells if not some[cell]), "where_unlearned": tuple(where)}
