"""Sentences that state what the contrasts show, and no more than that."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from poslab.comparison.axes import SEED, Value, level_name, order, short_names, show
from poslab.comparison.collect import INVALID, Job, without_repeats
from poslab.comparison.contrasts import LEVEL, TASK, Contrast, contrasts
from poslab.comparison.numbers import count, factor, number, p_value
from poslab.comparison.statistics import Test, seeds_needed

Kind = Literal["difference", "none", "unknown"]
WORTH_SEEDS = 1.05
"""Smallest factor for which the number of seeds needed is stated."""
MOST_PER_AXIS = 12
"""Most sentences per axis."""


@dataclass(frozen=True)
class Statement:
    """One sentence with its evidence.

    Attributes:
        kind: ``difference`` (significant), ``none`` (tested and not significant) or ``unknown`` (cannot be tested).
        text: the sentence, without a full stop.
        detail: numbers, test, and jobs that were left out.
    """

    kind: Kind
    text: str
    detail: str = ""


def statements(jobs: Sequence[Job], axes: Sequence[str]) -> tuple[list[Statement], str]:
    """The statements in the order of the axes, and a note on the method (empty if nothing was tested)."""
    if not any(job.completed for job in jobs):
        return [Statement("unknown", "No job completed, so there is nothing to compare")], ""
    names = short_names([*axes])
    if not [axis for axis in axes if axis not in (SEED, TASK)]:
        return _nothing_varies(jobs, axes), ""
    found = contrasts(jobs, axes)
    findings = []
    for _, group in groupby(found, key=lambda each: (each.axis, each.task)):
        findings += _of_axis([each for each in group if each.stated], jobs, axes, names)
    findings += _levels_without_jobs(jobs, axes, names)
    tested = sum(each.test is not None for each in found)
    return findings, _method(tested)


def _nothing_varies(jobs: Sequence[Job], axes: Sequence[str]) -> list[Statement]:
    if TASK in axes:
        return [Statement("unknown", "Only the task varies; tasks are different questions, so they are not ranked")]
    n = len(without_repeats(jobs))
    if SEED in axes:
        return [
            Statement(
                "unknown", f"Only the seed varies ({count(n, 'completed seed')}), so there is no question to answer"
            )
        ]
    return [Statement("unknown", "Every job has the same settings, so there is nothing to compare")]


def _method(tested: int) -> str:
    if not tested:
        return ""
    several = f"; p values by Holm's method over {count(tested, 'comparison')}" if tested > 1 else ""
    return (
        "Differences are taken within matched settings and seeds, on logarithms, and averaged over settings: "
        f"the sample size is the number of seeds{several}. A difference is stated below p = {LEVEL}."
    )


def _of_axis(
    group: Sequence[Contrast], jobs: Sequence[Job], axes: Sequence[str], names: dict[str, str]
) -> list[Statement]:
    """The sentences on one axis; a single one if no two completed jobs differ in this axis alone."""
    never = [each for each in group if each.reason == "never alone"]
    if len(never) > 1 and len(never) == len(group):
        name = names[group[0].axis]
        text = f"{_on(group[0])}{name}: no two completed jobs differ in it alone, so the data cannot tell"
        return [Statement("unknown", text, _confounded_with(group[0], jobs, axes, names))]
    # Significant differences first.
    ranked = sorted(group, key=lambda each: not each.clear)
    findings = [_sentence(each, jobs, axes, names) for each in ranked[:MOST_PER_AXIS]]
    if len(ranked) > MOST_PER_AXIS:
        rest = ranked[MOST_PER_AXIS:]
        clear = sum(each.clear for each in rest)
        more = f"{names[group[0].axis]}: {count(len(rest), 'more comparison')} of levels, {clear} of them clear"
        findings.append(Statement("difference" if clear else "none", _on(group[0]) + more))
    return findings


def _on(contrast: Contrast) -> str:
    return "" if contrast.task is None else f"on {show(contrast.task)}, "


def _sentence(contrast: Contrast, jobs: Sequence[Job], axes: Sequence[str], names: dict[str, str]) -> Statement:
    first, second = (level_name(contrast.axis, level, names) for level in (contrast.first, contrast.second))
    pair = f"{_on(contrast)}{first} against {second.removeprefix(f'{names[contrast.axis]} ')}"
    left_out = left_out_jobs(contrast, jobs, names)
    test = contrast.test
    if test is None:
        return _cannot_tell(contrast, pair, left_out, jobs, axes, names)
    if contrast.clear:
        if test.difference > 0:
            first, second = second, first
        ratio = factor(math.exp(abs(test.difference)))
        if contrast.outcome == "steps":
            text = f"{_on(contrast)}{first} reaches 99 % exact match in {ratio} fewer steps than {second}"
        else:
            text = f"{_on(contrast)}{first} ends at a {ratio} lower validation loss than {second}"
        return Statement("difference", text, _detail(contrast, test, left_out))
    if test.coarse:
        text = f"{pair}: too coarse to tell, validated only every {contrast.every} steps"
        return Statement(
            "unknown", text, _detail(contrast, test, f"validate more often or add seeds{left_out and '; '}{left_out}")
        )
    if contrast.identical:
        return Statement("none", f"{pair}: exactly the same results", _detail(contrast, test, left_out))
    hint = _more_seeds(contrast, test)
    where = "" if contrast.outcome == "steps" else " in validation loss"
    text = f"{pair}: no difference{where} beyond seed spread"
    return Statement("none", text, _detail(contrast, test, "; ".join(filter(None, [hint, left_out]))))


def _detail(contrast: Contrast, test: Test, rest: str) -> str:
    """The numbers behind a sentence, those of the better level first."""
    swapped = test.difference > 0
    one, two = reversed(contrast.sides) if swapped else contrast.sides
    low, high = (test.low, test.high) if swapped else (-test.high, -test.low)
    what = "steps" if contrast.outcome == "steps" else "validation loss"
    parts = [f"medians {number(one.middle)} and {number(two.middle)} {what}"]
    if test.deviation:
        less = "fewer" if contrast.outcome == "steps" else "lower"
        seen = "" if contrast.clear else f"{factor(math.exp(abs(test.difference)))} {less} on average, "
        parts.append(f"{seen}95 % interval {_factor(low)} to {_factor(high)}")
    parts += agreement(contrast)
    if contrast.outcome == "loss":
        parts.append(f"99 % exact match reached by {one.reached} of {one.jobs} and {two.reached} of {two.jobs} jobs")
    over = sample_size(contrast)
    if contrast.unreached:
        over += f" (in {contrast.unreached} more no job gets to 99 %)"
    parts.append(f"{test.name} on log {what}, {over}, {p_value(contrast.adjusted)}")
    if contrast.every and not test.coarse:
        parts.append(f"validated every {contrast.every} steps")
    return "; ".join(filter(None, [*parts, rest]))


def agreement(contrast: Contrast) -> list[str]:
    """In how many pairs of jobs the difference has the sign of the mean; empty without pairs."""
    agreeing, pairs = contrast.agree
    return [f"same direction in {agreeing} of {count(pairs, 'pair')}"] if pairs else []


def sample_size(contrast: Contrast) -> str:
    """The number of seeds of a test, and of settings over which they are averages."""
    seeds = count(contrast.seeds, "matched seed" if contrast.agree[1] else "seed")
    return f"{seeds} over {contrast.settings} settings" if contrast.settings > 1 else seeds


def _factor(log: float) -> str:
    """An end of an interval of factors, from its logarithm; below 1 the other level is better."""
    value = math.exp(max(-700.0, min(700.0, log)))
    return factor(value) if value >= 0.995 else f"{value:.2g}x"


def _more_seeds(contrast: Contrast, test: Test) -> str:
    """How many seeds would be needed to show a difference of the observed size; empty if it is too small to matter."""
    if math.exp(abs(test.difference)) < WORTH_SEEDS:
        return ""
    needed = seeds_needed(test.difference, test.deviation, LEVEL * test.p / max(contrast.adjusted, test.p))
    if needed is None or needed <= contrast.seeds:
        return ""
    return f"a difference of the size seen ({factor(math.exp(abs(test.difference)))}) would need about {needed} seeds"


def _cannot_tell(
    contrast: Contrast, pair: str, left_out: str, jobs: Sequence[Job], axes: Sequence[str], names: dict[str, str]
) -> Statement:
    def say(text: str, *details: str) -> Statement:
        return Statement("unknown", f"{pair}: {text}", "; ".join(filter(None, [*details, left_out])))

    match contrast.reason:
        case "never alone":
            alone = _confounded_with(contrast, jobs, axes, names)
            return say(f"no two completed jobs differ in {names[contrast.axis]} alone, so the data cannot tell", alone)
        case "few seeds" if contrast.seeds == 1:
            what = "steps to 99 % exact match" if contrast.outcome == "steps" else "validation loss"
            middle = [number(side.middle) for side in contrast.sides]
            seen = f"seen: {middle[0]} and {middle[1]} {what}"
            return say("the data cannot tell with one seed; add at least 2 seeds", seen)
        case "few seeds":
            return say("the data cannot tell, they have no seed in common; run both with the same 3 seeds or more")
        case "no spread":
            return say("the data cannot tell, every seed gave exactly the same difference; check that the seed is used")
        case _:
            return say("the data cannot tell, a validation loss is missing")


def _confounded_with(contrast: Contrast, jobs: Sequence[Job], axes: Sequence[str], names: dict[str, str]) -> str:
    """Text with the other axes that always differ between the two levels; empty if there is none."""
    sides = [
        [job for job in jobs if job.completed and job.settings.get(contrast.axis) == level]
        for level in (contrast.first, contrast.second)
    ]
    shared = [
        axis
        for axis in axes
        if axis not in (contrast.axis, SEED)
        and not {job.settings.get(axis) for job in sides[0]} & {job.settings.get(axis) for job in sides[1]}
    ]
    return f"{', '.join(names[axis] for axis in shared)} changes with it" if shared else ""


def left_out_jobs(contrast: Contrast, jobs: Sequence[Job], names: dict[str, str]) -> str:
    """Text with the number of jobs of both levels that did not complete, as these may bias a comparison of the rest."""
    incomplete = []
    for level in (contrast.first, contrast.second):
        here = [
            job.status
            for job in jobs
            if job.settings.get(contrast.axis) == level
            and (contrast.task is None or job.settings.get(TASK) == contrast.task)
            and not job.completed
            and job.status != INVALID
        ]
        if here:
            incomplete.append(f"{_statuses(here)} with {level_name(contrast.axis, level, names)}")
    return f"without {', '.join(incomplete)}" if incomplete else ""


def _statuses(statuses: Sequence[str]) -> str:
    return " and ".join(f"{n} {status}" for status, n in sorted(Counter(statuses).items()))


def _levels_without_jobs(jobs: Sequence[Job], axes: Sequence[str], names: dict[str, str]) -> list[Statement]:
    """One statement for each level of which no job completed."""
    findings = []
    for axis in axes:
        if axis == SEED:
            continue
        by_level: dict[Value, list[Job]] = {}
        for job in jobs:
            if axis in job.settings:
                by_level.setdefault(job.settings[axis], []).append(job)
        for level, here in sorted(by_level.items(), key=lambda item: order(item[0])):
            if not any(job.completed for job in here):
                incomplete = _statuses([job.status for job in here])
                findings.append(
                    Statement("unknown", f"{level_name(axis, level, names)}: no job completed ({incomplete})")
                )
    return findings
