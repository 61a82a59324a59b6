"""What the data say about lengths that training never saw, in words, and no more than they say."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from poslab.comparison.axes import SEED, level_name, short_names, show
from poslab.comparison.collect import Job, without_repeats
from poslab.comparison.contrasts import LEVEL, PAST, Contrast, contrasts
from poslab.comparison.numbers import count, p_value, percent
from poslab.comparison.settings import by_setting
from poslab.comparison.statements import MOST_PER_AXIS, Statement, left_out_jobs


def past_training(jobs: Sequence[Job], axes: Sequence[str]) -> tuple[list[Statement], str]:
    """Sentences on exact match past the training length, and how they were tested; none where nothing was asked.

    One number a job: the mean exact match over the lengths that every job was to be evaluated at and none was trained
    on. A job that does not reach all of them has no such number, and is told apart.
    """
    asked = [job for job in without_repeats(jobs) if job.trained_to is not None and _lengths(job)]
    if not asked:
        return [], ""
    longest = max(job.trained_to for job in asked if job.trained_to is not None)
    past = sorted(length for length in set.intersection(*map(_lengths, asked)) if length > longest)
    if not past:
        return [], ""
    scored = [
        replace(job, metrics=job.metrics | {PAST: fmean(job.by_length[length] for length in past)})
        for job in asked
        if all(length in job.by_length for length in past)
    ]
    names = short_names([*axes])
    found = contrasts(scored, axes, "past")
    stated = [each for each in found if each.stated and each.reason != "never alone"]
    where = f"past training length {longest}"
    said = []
    if any(each.test is not None or each.seeds > 1 for each in stated):
        # Differences first, as for the other outcomes.
        ranked = sorted(stated, key=lambda each: not each.clear)
        said += [_sentence(each, where, past, jobs, names) for each in ranked[:MOST_PER_AXIS]]
    elif len({tuple(job.settings.get(axis) for axis in axes if axis != SEED) for job in scored}) > 1:
        said.append(_seen_once(scored, axes, where, past))
    said = [replace(each, text=each.text[:1].upper() + each.text[1:]) for each in said]
    said += _unreached(asked, axes, past)
    return said, _method(past, sum(each.test is not None for each in found))


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
            text = "every seed gave the very same difference, which leaves no spread to test against"
        else:
            text = "the data cannot tell; run both with the same 3 seeds or more"
        return Statement("unknown", f"{pair}: {text}", "; ".join(filter(None, [seen, rest])))
    # On what is wrong: a first level that is ahead has less of it.
    turned = test.difference > 0
    if turned:
        first, second, shares = second, first, shares[::-1]
    low, high = (test.low, test.high) if turned else (-test.high, -test.low)
    parts = [f"mean exact match {percent(shares[0])} and {percent(shares[1])} over {_listed(past)}"]
    if test.deviation:
        parts.append(f"95 % interval {_points(low)} to {_points(high)} points")
    if contrast.agree[1]:
        parts.append(f"same direction in {contrast.agree[0]} of {count(contrast.agree[1], 'pair')}")
    over = count(contrast.seeds, "matched seed" if contrast.agree[1] else "seed")
    if contrast.settings > 1:
        over += f" over {contrast.settings} settings"
    parts.append(f"{test.name} on exact match, {over}, {p_value(contrast.adjusted)}")
    detail = "; ".join(filter(None, [*parts, rest]))
    if contrast.clear:
        gap = f"{_points(abs(test.difference))} percentage points more exact match"
        return Statement("difference", f"{on}{where}, {first} gets {gap} than {second}", detail)
    if contrast.identical:
        return Statement("none", f"{pair}: exactly the same exact match", detail)
    return Statement("none", f"{pair}: no difference in exact match beyond seed spread", detail)


def _points(share: float) -> str:
    return f"{100 * share:.1f}"


def _seen_once(scored: Sequence[Job], axes: Sequence[str], where: str, past: Sequence[int]) -> Statement:
    """With one seed there are numbers and nothing to test them with."""
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
    said = []
    for setting in by_setting(jobs, axes):
        lengths = [length for length in past if length in setting.out_of_reach]
        if lengths:
            text = f"{setting.label}: {_listed(lengths)} out of reach, so it is not compared past the training length"
            said.append(Statement("unknown", text, setting.out_of_reach[lengths[0]]))
    return said
