"""Group jobs that differ only in their seed into settings, with means and intervals over the seeds."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from poslab.comparison.axes import SEED, Value, level_name, order, short_names
from poslab.comparison.collect import INVALID, Job, without_repeats
from poslab.comparison.statistics import Interval, log_interval, mean_interval


@dataclass(frozen=True)
class Setting:
    """One combination of levels of the varying axes, with the results of its seeds.

    Attributes:
        levels: axis to level, without the seed; None if the setting does not have this axis.
        label: the levels as text.
        jobs: the completed jobs, each configuration once.
        incomplete: number of the other jobs by status.
        reached: number of completed jobs whose loss fell below a quarter of its start.
        exact_match: mean of the last values, with its interval; None without values.
        accuracy: mean of the last values, with its interval; None without values.
        loss: geometric mean of the last validation losses, with its interval; None without values.
        steps: geometric mean of the steps to a quarter of the start loss, with its interval; None unless every job got
            there.
        by_length: evaluation length to mean exact match, with its interval.
        out_of_reach: evaluation lengths that are out of reach for every job, with the reason.
    """

    levels: dict[str, Value | None]
    label: str
    jobs: list[Job]
    incomplete: dict[str, int]
    reached: int
    exact_match: Interval | None
    accuracy: Interval | None
    loss: Interval | None
    steps: Interval | None
    by_length: dict[int, Interval]
    out_of_reach: dict[int, str]


def lengths_of(settings: Sequence[Setting]) -> list[int]:
    """All evaluation lengths of these settings, including those out of reach, sorted."""
    return sorted({length for setting in settings for length in (*setting.by_length, *setting.out_of_reach)})


def by_setting(jobs: Sequence[Job], axes: Sequence[str]) -> list[Setting]:
    """The settings with at least one job that was started, sorted by their levels."""
    shown = [axis for axis in axes if axis != SEED]
    names = short_names([*axes])
    groups: dict[tuple[Value | None, ...], list[Job]] = {}
    for job in jobs:
        if job.status != INVALID and job.settings:
            groups.setdefault(tuple(job.settings.get(axis) for axis in shown), []).append(job)
    return [
        _setting(dict(zip(shown, levels, strict=True)), groups[levels], names)
        for levels in sorted(groups, key=lambda levels: [order(level) for level in levels])
    ]


def _setting(levels: dict[str, Value | None], jobs: Sequence[Job], names: dict[str, str]) -> Setting:
    completed = without_repeats(jobs)
    steps = [job.learning.quarter.step for job in completed if job.learning.quarter is not None]

    def last(name: str) -> list[float]:
        return [job.metrics[name] for job in completed if name in job.metrics]

    reached = sorted({length for job in completed for length in job.by_length})
    scores = {length: [job.by_length[length] for job in completed if length in job.by_length] for length in reached}
    unreached = {length: why for job in completed for length, why in job.lengths_out_of_reach.items()}
    words = [level_name(axis, level, names) for axis, level in levels.items() if level is not None]
    return Setting(
        levels=levels,
        label=", ".join(words) or "all jobs",
        jobs=completed,
        incomplete=dict(sorted(Counter(job.status for job in jobs if not job.completed).items())),
        reached=len(steps),
        exact_match=mean_interval(last("val/exact_match")),
        accuracy=mean_interval(last("val/accuracy")),
        loss=log_interval(last("val/loss")),
        steps=log_interval([max(1.0, step) for step in steps]) if len(steps) == len(completed) else None,
        by_length={length: found for length, values in scores.items() if (found := mean_interval(values))},
        out_of_reach={length: unreached[length] for length in sorted(unreached) if length not in scores},
    )
