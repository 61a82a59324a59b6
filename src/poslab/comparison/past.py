"""Statements about exact match at lengths beyond the training length."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from poslab.comparison.axes import SEED, level_name, short_names, show
from poslab.comparison.collect import Job, without_repeats
from poslab.comparison.contrasts import LEVEL, PAST, Contrast, contrasts
from poslab.comparison.numbers import count, p_value, percent
from poslab.comparison.settings import by_setting
from poslab.comparison.statements import MOST_PER_AXIS, Statement, agreement, left_out_jobs, sample_size


def past_training(jobs: Sequence[Job], axes: Sequence[str]) -> tuple[list[Statement], str]:
    """Compare exact match beyond the training length; returns statements and a note on the method.

    Each job has one number: its mean exact match over the lengths at which all jobs were to be evaluated and on which
    none was trained. Jobs for which one of these lengths is out of reach have no number; separate statements name
    their settings. Without such lengths there are no statements.
    """
    evaluated = [job for job in without_repeats(jobs) if job.trained_to is not None and _lengths(job)]
    if not evaluated:
        return [], ""
    longest = max(job.trained_to for job in evaluated if job.trained_to is not None)
    past = sorted(length for length in set.intersection(*map(_lengths, evaluated)) if length > longest)
    if not past:
        return [], ""
    scored = [
        replace(job, metrics=job.metrics | {PAST: fmean(job.by_length[length] for length in past)})
        for job in evaluated
        if all(length in job.by_length for length in past)
    ]
    names = short_names([*axes])
    found = contrasts(scored, axes, "past")
    stated = [each for each in found if each.stated and each.reason != "never alone"]
    where = f"past training length {longest}"
    findings = []
    if any(each.test is not None or each.seeds > 1 for each in stated):
        # Significant differences first, as in `statements`.
        ranked = sorted(stated, key=lambda each: not each.clear)
        findings += [_sentence(each, where, past, jobs, names) for each in ranked[:MOST_PER_AXIS]]
    elif len({tuple(job.settings.get(axis) for axis in axes if axis != SEED) for job in scored}) > 1:
        findings.append(_one_seed(scored, axes, where, past))
    findings = [replace(each, text=each.text[:1].upper() + each.text[1:]) for each in findings]
    findings += _unreached(evaluated, axes, past)
    return findings, _method(past, sum(each.test is not None for each in found))


def _lengths(job: Job) -> set[int]:
    return {*job.by_length, *job.lengths_out_of_reach}


def _listed(lengths: Sequence[int]) -> str:
    return f"length{'s' * (len(lengths) > 1)} {', '.join(map(str, lengths))}"


def _method(past: Sequence[int], tested: int) -> str:
    if not tested:
        return ""
    several = f"; p values by Holm's method over {count(tested, 'comparison')} of this kind" if tested > 1 else ""
    return (
        f"Past the training length: mean exact match over {_listed(past)}, differences in percentage points within "
        f"matched settings and seeds, averaged over settings{several}. A difference is stated below p = {LEVEL}."
    )


def _sentence(
    contrast: Contrast, where: str, past: Sequence[int], jobs: Sequence[Job], names: dict[str, str]
) -> Statement:
    first, second = (level_name(contrast.axis, level, names) for level in (contrast.first, contrast.second))
    on = "" if contrast.task is None else f"on {show(contrast.task)}, "
    pair = f"{on}{where}, {first} against {second.removeprefix(f'{names[contrast.axis]} ')}"
    shares = [side.middle for side in contrast.sides]
    rest = left_out_jobs(contrast, jobs, names)
    test = contrast.test
    if test is None:
        seen = f"seen: mean exact match {percent(shares[0])} and {percent(shares[1])} over {_listed(past)}"
        if contrast.reason == "no spread":
            text = "every seed gave exactly the same difference, so there is no spread to test against"
        else:
            text = "the data cannot tell; run both with the same 3 seeds or more"
        return Statement("unknown", f"{pair}: {text}", "; ".join(filter(None, [seen, rest])))
    # The test is on the negative of exact match, so the first level is better if the difference is negative.
    swapped = test.difference > 0
    if swapped:
        first, second, shares = second, first, shares[::-1]
    low, high = (test.low, test.high) if swapped else (-test.high, -test.low)
    parts = [f"mean exact match {percent(shares[0])} and {percent(shares[1])} over {_listed(past)}"]
    if test.deviation:
        parts.append(f"95 % interval {_points(low)} to {_points(high)} points")
    parts += agreement(contrast)
    parts.append(f"{test.name} on exact match, {sample_size(contrast)}, {p_value(contrast.adjusted)}")
    detail = "; ".join(filter(None, [*parts, rest]))
    if contrast.clear:
        gap = f"{_points(abs(test.difference))} percentage points more exact match"
        return Statement("difference", f"{on}{where}, {first} gets {gap} than {second}", detail)
    if contrast.identical:
        return Statement("none", f"{pair}: exactly the same exact match", detail)
    return Statement("none", f"{pair}: no difference in exact match beyond seed spread", detail)


def _points(share: float) -> str:
    return f"{100 * share:.1f}"


def _one_seed(scored: Sequence[Job], axes: Sequence[str], where: str, past: Sequence[int]) -> Statement:
    """The statement for a single seed: it lists the numbers, but they cannot be tested."""
    means = [(fmean(job.metrics[PAST] for job in each.jobs), each.label) for each in by_setting(scored, axes)]
    best = sorted(means, key=lambda pair: (-pair[0], pair[1]))
    seen = ", ".join(f"{label} {percent(mean)}" for mean, label in best[:MOST_PER_AXIS])
    more = f" and {len(best) - MOST_PER_AXIS} more settings" if len(best) > MOST_PER_AXIS else ""
    return Statement(
        "unknown",
        f"{where}: the data cannot tell which setting is ahead with one seed; add at least 2 seeds",
        f"seen: mean exact match over {_listed(past)}: {seen}{more}",
    )


def _unreached(jobs: Sequence[Job], axes: Sequence[str], past: Sequence[int]) -> list[Statement]:
    findings = []
    for setting in by_setting(jobs, axes):
        lengths = [length for length in past if length in setting.out_of_reach]
        if lengths:
            text = f"{setting.label}: {_listed(lengths)} out of reach, so it is not compared past the training length"
            findings.append(Statement("unknown", text, setting.out_of_reach[lengths[0]]))
    return findings
