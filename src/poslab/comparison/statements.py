"""Sentences that state what the contrasts show, and no more than that."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from poslab.comparison.axes import SEED, Value, level_name, order, short_names, show
from poslab.comparison.collect import COMPLETED, INVALID, Job, without_repeats
from poslab.comparison.contrasts import LEVEL, TASK, Contrast, contrasts
from poslab.comparison.details import detail, missing, phrase, sample, seen_so_far
from poslab.comparison.levels import cell_name
from poslab.comparison.numbers import count, times
from poslab.comparison.outcomes import EVERY
from poslab.comparison.verdicts import MARGIN, Kind, Verdict, by_setting, interval_of, kind_of, scaled, too_coarse

MOST_PER_AXIS = 12
"""Most sentences per axis."""
MOST_SETTINGS = 6
"""Most settings that a sentence lists."""
RANK: Mapping[Kind, int] = {"different": 0, "suggestive": 1, "equivalent": 2, "unknown": 3}


@dataclass(frozen=True)
class Plan:
    """How jobs are to be compared.

    Attributes:
        margin: two levels within this factor of each other are equivalent.
        tune: axes along which each level is compared at its own best value.
        target: a ratio for which the number of seeds needed is stated; None for no such statement.
    """

    margin: float = MARGIN
    tune: tuple[str, ...] = ()
    target: float | None = None


@dataclass(frozen=True)
class Statement:
    """One sentence with its evidence.

    Attributes:
        kind: what the sentence says.
        text: the sentence, without a full stop.
        detail: numbers and tests behind it.
        verdict: the contrast behind it; None for a sentence on the jobs.
    """

    kind: Kind
    text: str
    detail: str = ""
    verdict: Verdict | None = None


def statements(
    jobs: Sequence[Job], axes: Sequence[str], plan: Plan | None = None
) -> tuple[list[Statement], list[Verdict], str]:
    """The statements in the order of the axes, every verdict, and a note on the method (empty if nothing was tested).

    There is a verdict on every contrast that counts in Holm's adjustment, also on those that get no sentence.
    """
    plan = plan or Plan()
    first = _incomplete(jobs)
    if not any(job.judged for job in jobs):
        return [*first, Statement("unknown", "No job completed, so there is nothing to compare")], [], ""
    names = short_names([*axes])
    if not [axis for axis in axes if axis not in (SEED, TASK)]:
        return [*first, *_nothing_varies(jobs, axes)], [], ""
    found = contrasts(jobs, axes, plan.tune)
    said = [(each, _statement(each, jobs, axes, names, plan)) for each in found]
    findings = list(first)
    for _, group in groupby(said, key=lambda pair: (pair[0].axis, pair[0].task)):
        findings += _of_axis([pair for pair in group if pair[0].stated], jobs, axes, names)
    findings += _levels_without_jobs(jobs, axes, names)
    verdicts = [each.verdict for _, each in said if each.verdict is not None]
    return findings, verdicts, _method(found, plan)


def _incomplete(jobs: Sequence[Job]) -> list[Statement]:
    """What did not complete is said before anything else: the rest may be a selection."""
    statuses = Counter(job.status for job in jobs if job.status != INVALID)
    incomplete = {status: n for status, n in sorted(statuses.items()) if status != COMPLETED}
    if not incomplete:
        return []
    listed = ", ".join(f"{n} {status}" for status, n in incomplete.items())
    total = count(sum(statuses.values()), "job")
    return [Statement("unknown", f"{sum(incomplete.values())} of {total} did not complete: {listed}")]


def _nothing_varies(jobs: Sequence[Job], axes: Sequence[str]) -> list[Statement]:
    if TASK in axes:
        return [Statement("unknown", "Only the task varies; tasks are different questions, so they are not ranked")]
    n = len(without_repeats(jobs))
    if SEED in axes:
        text = f"Only the seed varies ({count(n, 'completed seed')}), so there is no question to answer"
        return [Statement("unknown", text)]
    return [Statement("unknown", "Every job has the same settings, so there is nothing to compare")]


def _method(found: Sequence[Contrast], plan: Plan) -> str:
    tested = sum(each.p is not None for each in found)
    if not tested:
        return ""
    several = f"; p values by Holm's method over {count(tested, 'comparison')}" if tested > 1 else ""
    best = f" Each level is compared at its own best {', '.join(plan.tune)}." if plan.tune else ""
    return (
        "Differences are taken within matched settings and seeds and averaged over settings: the sample size is the "
        f"number of seeds{several}. Different: below p = {LEVEL}; suggestive: only before Holm's adjustment; "
        f"equivalent: the 90 % interval of the ratio is within 1/{plan.margin:g} and {plan.margin:g}.{best}"
    )


def _of_axis(
    group: Sequence[tuple[Contrast, Statement]], jobs: Sequence[Job], axes: Sequence[str], names: Mapping[str, str]
) -> list[Statement]:
    """The sentences on one axis; a single one if no two jobs differ in this axis alone."""
    never = [contrast for contrast, _ in group if contrast.reason == "never alone"]
    if len(never) > 1 and len(never) == len(group):
        text = f"{_on(never[0])}{names[never[0].axis]}: no two completed jobs differ in it alone, so it is not known"
        return [Statement("unknown", text, _confounded_with(never[0], jobs, axes, names))]
    ranked = sorted((statement for _, statement in group), key=lambda each: RANK[each.kind])
    shown, rest = ranked[:MOST_PER_AXIS], ranked[MOST_PER_AXIS:]
    if rest:
        kinds = Counter(each.kind for each in rest)
        listed = ", ".join(f"{n} {'not known' if kind == 'unknown' else kind}" for kind, n in kinds.items())
        text = f"{names[group[0][0].axis]}: {count(len(rest), 'more comparison')} of levels ({listed})"
        shown.append(Statement(rest[0].kind, _on(group[0][0]) + text))
    return shown


def _on(contrast: Contrast) -> str:
    return "" if contrast.task is None else f"on {show(contrast.task)}, "


def _statement(
    contrast: Contrast, jobs: Sequence[Job], axes: Sequence[str], names: Mapping[str, str], plan: Plan
) -> Statement:
    first, second = contrast.first.name(contrast.axis, names), contrast.second.name(contrast.axis, names)
    pair = f"{first} against {second.removeprefix(f'{names[contrast.axis]} ')}"
    kind = kind_of(contrast, plan.margin)
    said = _sentence(contrast, kind, first, second, pair, names, plan)
    text = "; ".join(filter(None, [missing(contrast, names), _on(contrast) + said]))
    if contrast.reason == "never alone":
        behind = _confounded_with(contrast, jobs, axes, names)
    else:
        behind = detail(contrast, names, plan.target)
    return Statement(kind, text, behind, _verdict(contrast, kind, text, names, plan))


def _sentence(
    contrast: Contrast, kind: Kind, first: str, second: str, pair: str, names: Mapping[str, str], plan: Plan
) -> str:
    """The sentence on a contrast, without what is missing."""
    if contrast.reason is not None and not contrast.primary.identical:
        return _cannot_tell(contrast, pair, names)
    if contrast.outcome == "learned":
        one, two = contrast.counts
        seeds = count(sum(contrast.discordant), "seed")
        words = f"is learned in {one.learned} of {one.known} runs with {first} and in {two.learned} of {two.known} with"
        lead = "suggestive: the task" if kind == "suggestive" else "the task"
        return f"{lead} {words} {second} (only one of the two in {seeds})"
    outcome, found = EVERY[contrast.outcome], contrast.primary
    if by_setting(contrast, plan.margin):
        return f"{pair} depends on the setting: {_by_setting(contrast, first, names)} ({sample(contrast)})"
    over = _caveat(contrast)
    if found.identical:
        return f"{pair}: exactly the same {outcome.what}{over} ({sample(contrast)})"
    estimate = found.estimate
    assert estimate is not None
    swapped = (estimate.mean > 0) == outcome.logs
    better, worse = (second, first) if swapped else (first, second)
    unit = "" if outcome.logs else " points"
    bound = f"at most {_size(estimate.bound, outcome.logs)}{unit} apart"
    # Of the better level, which comes first: how much more the other one needs, or how much less it gets.
    low, high = estimate.interval(0.95)
    if estimate.mean < 0:
        low, high = -high, -low
    ends = f"{_size(low, outcome.logs)} to {_size(high, outcome.logs)}"
    difference = phrase(outcome, estimate.mean)
    within = outcome.logs and estimate.bound < math.log(plan.margin)
    small = f", within the margin of {plan.margin:g}x" if within else ""
    numbers = f"95 % interval {ends}, {bound}{small}; {sample(contrast)}"
    if kind == "different":
        return f"{better} {difference} than {worse}{over} ({numbers})"
    if kind == "suggestive":
        return f"suggestive: {better} {difference} than {worse}{over} ({numbers})"
    if kind == "equivalent":
        return f"{pair}: equivalent within {plan.margin:g}x in {outcome.what}{over} ({bound}; {sample(contrast)})"
    if too_coarse(contrast, plan.margin):
        known = f"known only to a factor of {times(found.spacing)}"
        return f"{pair}: too coarse to tell, {outcome.what} {known}{over} ({bound}; {sample(contrast)})"
    return f"{pair}: not known in {outcome.what}{over} ({bound}; {sample(contrast)})"


def _caveat(contrast: Contrast) -> str:
    """Says that an average covers settings in which no run learns, or that one level learns in more runs."""
    within = sum(each.cell in contrast.unlearned for each in contrast.primary.by_setting)
    if within and len(contrast.primary.by_setting) > 1:
        return f" on average over {count(contrast.settings, 'setting')}; in {within} of them no run learns the task"
    one, two = contrast.counts
    if one.known and two.known and one.learned * two.known != two.learned * one.known:
        return f", though {one.learned} of {one.known} and {two.learned} of {two.known} runs learn the task"
    return ""


def _size(difference: float, logs: bool) -> str:
    """A difference of logarithms as a factor, a difference of shares in percentage points."""
    return times(scaled(difference, logs)) if logs else f"{100 * difference:.1f}"


def _by_setting(contrast: Contrast, first: str, names: Mapping[str, str]) -> str:
    outcome = EVERY[contrast.outcome]
    parts = []
    tested = [(cell, estimate) for cell, estimate in contrast.primary.by_setting if estimate is not None]
    for cell, estimate in tested[:MOST_SETTINGS]:
        parts.append(f"with {cell_name(cell, contrast.others, names)} {first} {phrase(outcome, estimate.mean, True)}")
    more = len(tested) - MOST_SETTINGS
    return ", ".join(parts) + (f", and {count(more, 'more setting')}" if more > 0 else "")


def _cannot_tell(contrast: Contrast, pair: str, names: Mapping[str, str]) -> str:
    match contrast.reason:
        case "never alone":
            return f"{pair}: no two completed jobs differ in {names[contrast.axis]} alone, so it is not known"
        case "few seeds" if contrast.seeds == 1:
            return f"{pair}: not known with one seed{seen_so_far(contrast)}"
        case "few seeds":
            return f"{pair}: not known, too few runs of the same seeds can be compared{seen_so_far(contrast)}"
        case "none completed":
            return f"{pair}: not known, no run of the two completed"
        case "no spread":
            return f"{pair}: not known, every seed gave exactly the same difference; check that the seed is used"
        case _:
            return f"{pair}: not known, a loss curve from step 0 is missing"


def _verdict(contrast: Contrast, kind: Kind, text: str, names: Mapping[str, str], plan: Plan) -> Verdict:
    logs = contrast.outcome == "learned" or EVERY[contrast.outcome].logs
    found = contrast.primary
    depends = by_setting(contrast, plan.margin)
    whole = None if depends else interval_of(found, logs)
    if found.identical:
        whole = (scaled(0.0, logs),) * 3
    bound = None if found.estimate is None or depends else scaled(found.estimate.bound, logs)
    rows = [
        {
            "setting": cell_name(cell, contrast.others, names),
            "ratio": scaled(estimate.mean, logs),
            "low": scaled(estimate.interval(0.95)[0], logs),
            "high": scaled(estimate.interval(0.95)[1], logs),
            "bound": scaled(estimate.bound, logs),
        }
        for cell, estimate in found.by_setting
        if depends and estimate is not None
    ]
    return Verdict(
        axis=contrast.axis,
        task=contrast.task,
        first=contrast.first.stored(contrast.axis),
        second=contrast.second.stored(contrast.axis),
        outcome=contrast.outcome,
        ratio=whole and whole[0],
        low=whole and whole[1],
        high=whole and whole[2],
        bound=scaled(0.0, logs) if found.identical else bound,
        p=contrast.p,
        p_adjusted=contrast.adjusted,
        p_interaction=contrast.interaction,
        verdict=kind,
        seeds=contrast.seeds,
        settings=contrast.settings,
        by_setting=rows,
        text=text,
    )


def _confounded_with(contrast: Contrast, jobs: Sequence[Job], axes: Sequence[str], names: Mapping[str, str]) -> str:
    """Text with the other axes that always differ between the two levels; empty if there is none."""
    sides = [
        [job for job in jobs if job.completed and job.settings.get(contrast.axis) == level.value]
        for level in (contrast.first, contrast.second)
    ]
    shared = [
        axis
        for axis in axes
        if axis not in (contrast.axis, SEED)
        and not {job.settings.get(axis) for job in sides[0]} & {job.settings.get(axis) for job in sides[1]}
    ]
    return f"{', '.join(names[axis] for axis in shared)} changes with it" if shared else ""


def _levels_without_jobs(jobs: Sequence[Job], axes: Sequence[str], names: Mapping[str, str]) -> list[Statement]:
    """One statement for each level of which no job completed or diverged."""
    findings = []
    for axis in axes:
        if axis == SEED:
            continue
        by_level: dict[Value, list[Job]] = {}
        for job in jobs:
            if axis in job.settings:
                by_level.setdefault(job.settings[axis], []).append(job)
        for level, here in sorted(by_level.items(), key=lambda item: order(item[0])):
            if not any(job.judged for job in here):
                statuses = " and ".join(
                    f"{n} {status}" for status, n in sorted(Counter(j.status for j in here).items())
                )
                findings.append(
                    Statement("unknown", f"{level_name(axis, level, names)}: no job completed ({statuses})")
                )
    return findings
