"""The numbers behind a sentence: medians, tests, other outcomes, and what was left out."""

from collections.abc import Mapping, Sequence

from poslab.comparison.axes import show
from poslab.comparison.contrasts import LEVEL, Contrast
from poslab.comparison.numbers import count, number, p_value, percent, times
from poslab.comparison.outcomes import EVERY, Name, Outcome
from poslab.comparison.statistics import deviation_range, seeds_needed
from poslab.comparison.tuning import Chosen
from poslab.comparison.verdicts import interval_of, scaled

ADVISED_SEEDS = 8
# One computation takes half the time of eight jobs in one process, from D 32 with one layer to D 64 with two.
ADVICE = f"run {ADVISED_SEEDS} seeds (seeds={ADVISED_SEEDS})"
OTHERS: tuple[Name, ...] = ("speed", "late", "area", "loss")
"""Outcomes that are reported beside the primary one."""
MANY = 200


def phrase(outcome: Outcome, difference: float, signed: bool = False) -> str:
    """What a level does against another one, as in ``needs 1.39x fewer steps``.

    Args:
        outcome: what was measured.
        difference: first minus second, or either way round if not ``signed``.
        signed: say ``more`` where the first needs more; else the sentence names the better level first.
    """
    more = signed and difference > 0
    if not outcome.logs:
        less = "fewer" if signed and difference < 0 else "more"
        return f"gets {100 * abs(difference):.1f} percentage points {less} {outcome.what}"
    ratio = times(scaled(abs(difference), logs=True))
    match outcome.name:
        case "speed" | "late":
            return f"needs {ratio} {'more' if more else 'fewer'} {outcome.what}"
        case "area":
            return f"has a {ratio} {'larger' if more else 'smaller'} {outcome.what}"
        case _:
            return f"ends at a {ratio} {'higher' if more else 'lower'} {outcome.what}"


def missing(contrast: Contrast, names: Mapping[str, str]) -> str:
    """The jobs of both levels that did not complete, as these may bias a comparison of the rest; empty without any."""
    parts = []
    for level, counts in zip((contrast.first, contrast.second), contrast.counts, strict=True):
        parts += [
            f"{n} of {counts.jobs} jobs with {level.name(contrast.axis, names)} {_ended(status, n)}"
            for status, n in counts.incomplete.items()
        ]
    return ", ".join(parts)


def _ended(status: str, n: int) -> str:
    be = "was" if n == 1 else "were"
    return status if status in ("diverged", "failed") else f"{be} {status}"


def sample(contrast: Contrast) -> str:
    """The sample size of a test, and in how many pairs of jobs the difference has the sign of the mean."""
    found = contrast.primary
    agreeing, pairs = found.agree
    seeds = count(contrast.seeds, "seed")
    if not pairs and not found.ties:
        return f"at least {seeds} each, not paired"
    over = f" over {contrast.settings} settings" if contrast.settings > 1 else ""
    ties = f", {count(found.ties, 'tie')}" if found.ties else ""
    return f"{seeds}{over}, {agreeing} of {count(pairs, 'pair')} agree{ties}"


def seen_so_far(contrast: Contrast) -> str:
    """The middles of both levels where there is no test; empty without values."""
    one, two = contrast.primary.middles
    if one is None or two is None:
        return ""
    return f"; seen: {_value(one, contrast)} and {_value(two, contrast)} {EVERY[contrast.outcome].what}"


def _value(value: float | None, contrast: Contrast) -> str:
    return number(value) if EVERY[contrast.outcome].logs else percent(value)


def detail(contrast: Contrast, names: Mapping[str, str], target: float | None = None) -> str:
    """All that is behind the sentence on a contrast, without a full stop.

    Args:
        contrast: the contrast.
        names: short names of the axes.
        target: a ratio for which the number of seeds needed is stated.
    """
    levels = [level.name(contrast.axis, names) for level in (contrast.first, contrast.second)]
    parts = [_test(contrast, levels), *_flips(contrast), _learned(contrast), *_secondary(contrast, levels)]
    if contrast.unlearned:
        where = ", ".join(f"{names.get(axis, axis)} {show(value)}" for axis, value in contrast.where_unlearned)
        n = count(len(contrast.unlearned), "setting")
        parts.append(f"in {n} no run learns" + (f" ({where})" if where else ""))
    if contrast.chosen is not None:
        one, two = (_chosen(chosen) for chosen in contrast.chosen)
        parts.append(f"each at its own best value, chosen on the other half of the seeds: {one} and {two}")
    parts += [*_needed(contrast, target), *_advice(contrast)]
    return "; ".join(filter(None, parts))


def _test(contrast: Contrast, levels: Sequence[str]) -> str:
    if contrast.p is None or contrast.adjusted is None:
        return ""
    adjusted = f", {p_value(contrast.adjusted)} by Holm's method" if contrast.adjusted > contrast.p else ""
    if contrast.outcome == "learned":
        return f"sign test on seeds, {p_value(contrast.p)}{adjusted}"
    estimate = contrast.primary.estimate
    assert estimate is not None
    one, two = (_value(middle, contrast) for middle in contrast.primary.middles)
    middle = "medians" if EVERY[contrast.outcome].logs else "means"
    on = "log " if EVERY[contrast.outcome].logs else ""
    text = (
        f"{middle} {one} ({levels[0]}) and {two} ({levels[1]}); {estimate.name} on {on}{EVERY[contrast.outcome].what}, "
    )
    text += f"{p_value(contrast.p)}{adjusted}"
    if contrast.interaction is not None:
        text += f"; the same in every setting: {p_value(contrast.interaction)}"
    return text


def _flips(contrast: Contrast) -> list[str]:
    estimate = contrast.primary.estimate
    if estimate is None:
        return []
    parts = [] if estimate.flips is None else [f"sign-flip test {p_value(estimate.flips)}"]
    if estimate.far:
        seeds = ", ".join(map(str, estimate.far))
        parts.append(f"far from the others: seed{'s' * (len(estimate.far) > 1)} {seeds}")
    return parts


def _learned(contrast: Contrast) -> str:
    """How many jobs of each level end above 99 % exact match."""
    one, two = contrast.counts
    if not one.known or not two.known or contrast.outcome == "learned":
        return ""
    if (one.learned, two.learned) == (one.known, two.known):
        return "both solve it, with at least 99 % exact match at the end of every run"
    return f"99 % exact match at the end of {one.learned} of {one.known} and {two.learned} of {two.known} runs"


def _secondary(contrast: Contrast, levels: Sequence[str]) -> list[str]:
    """The outcomes beside the primary one with their intervals: at most suggestive, as no adjustment covers them."""
    parts = []
    for name in OTHERS:
        found = contrast.findings.get(name)
        if name == contrast.outcome or found is None or found.estimate is None:
            continue
        ratio, low, high = interval_of(found, logs=True) or (1.0, 1.0, 1.0)
        text = f"{EVERY[name].what} {times(ratio)} [{times(low)}, {times(high)}]"
        parts.append(text + (" (suggestive)" if found.estimate.p < LEVEL else ""))
    speed, late = (
        contrast.findings[name].estimate if name in contrast.findings else None for name in ("speed", "late")
    )
    if speed and late and speed.p < LEVEL and late.p < LEVEL and speed.mean * late.mean < 0:
        parts.append("the curves cross")
    if parts:
        parts[0] = f"{levels[0]} over {levels[1]}: {parts[0]}"
    return parts


def _chosen(chosen: Chosen) -> str:
    values = dict.fromkeys(" ".join(map(str, each)) for best in chosen.values() for each in best)
    return " or ".join(values) or "nothing"


def _needed(contrast: Contrast, target: float | None) -> list[str]:
    """How many seeds would show the ratio that was asked for, from the spread of the seeds."""
    estimate = contrast.primary.estimate
    if target is None or estimate is None or contrast.outcome == "past" or contrast.outcome == "learned":
        return []
    # The smallest p value of Holm's family has to pass this.
    level = LEVEL / contrast.family
    fewest, most = (
        seeds_needed(target, deviation, level, MANY) for deviation in deviation_range(estimate.deviation, estimate.df)
    )
    if fewest is None:
        return [f"a ratio of {times(target)} would need more than {MANY} seeds"]
    upper = f"more than {MANY}" if most is None else str(most)
    seeds = upper if upper == str(fewest) else f"{fewest} to {upper}"
    return [f"a ratio of {times(target)} would need {seeds} seeds"]


def _advice(contrast: Contrast) -> list[str]:
    if contrast.reason == "few seeds" or (contrast.seeds and contrast.seeds < ADVISED_SEEDS and contrast.p is not None):
        return [] if contrast.adjusted is not None and contrast.adjusted < LEVEL else [ADVICE]
    return []
