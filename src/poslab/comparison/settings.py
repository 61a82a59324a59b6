"""Jobs that differ only in their seed, taken together."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from poslab.comparison.axes import SEED, Value, level_name, order, short_names
from poslab.comparison.collect import INVALID, Job, without_repeats
from poslab.comparison.statistics import Interval, log_interval, mean_interval


@dataclass(frozen=True)
class Setting:
    """One combination of the varying axes, over its seeds.

    Attributes:
        levels: by axis, without the seed; None where the setting has no such axis.
        label: the levels in a few words.
        jobs: those that completed, each configuration once.
        lost: number of the others by status.
        reached: how many jobs reached 99 % exact match.
        exact_match: mean of the last values, with its interval; None without values.
        accuracy: likewise.
        loss: geometric mean of the last validation losses.
        steps: geometric mean of the steps to 99 % exact match; None unless every job reached it.
        by_length: mean exact match at each length that the jobs were evaluated at, with its interval.
        out_of_reach: the lengths that no job reaches, with the reason.
    """

    levels: dict[str, Value | None]
    label: str
    jobs: list[Job]
    lost: dict[str, int]
    reached: int
    exact_match: Interval | None
    accuracy: Interval | None
    loss: Interval | None
    steps: Interval | None
    by_length: dict[int, Interval]
    out_of_reach: dict[int, str]


def lengths_of(settings: Sequence[Setting]) -> list[int]:
    """Every length that jobs of these settings were to be evaluated at."""
    return sorted({length for setting in settings for length in (*setting.by_length, *setting.out_of_reach)})


def by_setting(jobs: Sequence[Job], axes: Sequence[str]) -> list[Setting]:
    """Every setting that at least one job was started for, in the order of its levels."""
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
    steps = [
        job.history.reached["val/exact_match"].step for job in completed if "val/exact_match" in job.history.reached
    ]

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
        lost=dict(sorted(Counter(job.status for job in jobs if not job.completed).items())),
        reached=len(steps),
        exact_match=mean_interval(last("val/exact_match")),
        accuracy=mean_interval(last("val/accuracy")),
        loss=log_interval(last("val/loss")),
        steps=log_interval([max(1, step) for step in steps]) if len(steps) == len(completed) else None,
        by_length={length: found for length, values in scores.items() if (found := mean_interval(values))},
        out_of_reach={length: unreached[length] for length in sorted(unreached) if length not in scores},
    )
