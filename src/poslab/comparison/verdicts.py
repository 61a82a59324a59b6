"""What may be said of a contrast: different, suggestive, equivalent, or not known."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from poslab.comparison.axes import Value
from poslab.comparison.contrasts import LEVEL, Contrast
from poslab.comparison.findings import Finding
from poslab.config.schema import ComparisonConfig

Kind = Literal["different", "suggestive", "equivalent", "unknown"]
MARGIN = ComparisonConfig.margin
"""Two levels are equivalent if the 90 % interval of their ratio is between one over this and this."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One entry of ``verdicts`` in ``comparison.json``.

    Attributes:
        axis: name of the setting.
        task: the task, if several are compared.
        first, second: the levels, as they are typed.
        outcome: the primary outcome.
        ratio: first over second; below 1 the first level needs less. For exact match past the training length, here
            and below, the difference of the shares instead. None for ``learned``, and where settings differ.
        low, high: 95 % interval of the ratio.
        bound: the factor that both levels are at most apart, by the 90 % interval.
        p, p_adjusted: the p value, and by Holm's method over all contrasts.
        p_interaction: by Holm's method, that the ratio depends on the setting.
        verdict: what may be said.
        seeds: number of seeds, the sample size.
        settings: number of matched settings over which the ratio is an average.
        by_setting: setting, ratio, low and high of each, where these replace the average.
        text: the sentence.
    """

    axis: str
    task: Value | None
    first: str
    second: str
    outcome: str
    ratio: float | None
    low: float | None
    high: float | None
    bound: float | None
    p: float | None
    p_adjusted: float | None
    p_interaction: float | None
    verdict: Kind
    seeds: int
    settings: int
    by_setting: list[dict[str, Any]]
    text: str


def kind_of(contrast: Contrast, margin: float = MARGIN) -> Kind:
    """The verdict on a contrast."""
    if contrast.outcome == "learned":
        return "different" if _below(contrast.adjusted) else "suggestive"
    found = contrast.primary
    if by_setting(contrast, margin):
        return "different"
    if found.identical:
        return "equivalent"
    estimate = found.estimate
    if estimate is None:
        return "unknown"
    if _below(contrast.adjusted):
        return "different"
    if too_coarse(contrast, margin):
        return "unknown"
    if contrast.outcome != "past" and estimate.bound < math.log(margin):
        return "equivalent"
    return "suggestive" if estimate.p < LEVEL else "unknown"


def by_setting(contrast: Contrast, margin: float = MARGIN) -> bool:
    """Whether the settings are reported one by one: their differences are unlike, and not all within the margin."""
    if contrast.outcome == "learned" or not contrast.depends or contrast.primary.spacing > margin:
        return False
    estimates = [each.estimate for each in contrast.primary.by_setting if each.estimate is not None]
    return contrast.outcome == "past" or any(each.bound >= math.log(margin) for each in estimates)


def too_coarse(contrast: Contrast, margin: float = MARGIN) -> bool:
    """Whether the outcome is known only to a factor above the margin, so that levels would look equal in any case."""
    found = contrast.primary
    return found.estimate is not None and (found.spacing > margin or found.estimate.rounded)


def _below(p: float | None) -> bool:
    return p is not None and p < LEVEL


def scaled(value: float, logs: bool) -> float:
    """A difference as a ratio, if it is one of logarithms; the bounds keep exp() within the range of floats."""
    return math.exp(max(-700.0, min(700.0, value))) if logs else value


def interval_of(finding: Finding, logs: bool) -> tuple[float, float, float] | None:
    """Ratio, low and high end of its 95 % interval; None without an estimate."""
    if finding.estimate is None:
        return None
    low, high = finding.estimate.interval(0.95)
    return scaled(finding.estimate.mean, logs), scaled(low, logs), scaled(high, logs)
