"""Intervals and tests for a comparison, each with its assumptions."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean, variance


@dataclass(frozen=True)
class Interval:
    """The mean of ``n`` values and its 95 % interval by Student's t; ``low`` and ``high`` are None for one value."""

    n: int
    mean: float
    low: float | None
    high: float | None


def mean_interval(values: Sequence[float]) -> Interval | None:
    """The mean with its 95 % interval, for values of independent seeds; None without values."""
    if not values:
        return None
    mean = fmean(values)
    if len(values) < 2:
        return Interval(1, mean, None, None)
    half = _quantile(len(values) - 1, 0.975) * math.sqrt(variance(values) / len(values))
    return Interval(len(values), mean, mean - half, mean + half)


def log_interval(values: Sequence[float]) -> Interval | None:
    """The geometric mean of positive values with its 95 % interval, computed on logarithms; None without values."""
    found = mean_interval([math.log(max(value, TINY)) for value in values])
    if found is None or found.low is None or found.high is None:
        return found and Interval(found.n, math.exp(found.mean), None, None)
    # The bounds keep exp() within the range of floats.
    return Interval(found.n, math.exp(found.mean), math.exp(max(found.low, -700)), math.exp(min(found.high, 700)))


TINY = 1e-12
"""Smallest value whose logarithm is taken; it replaces a loss of zero."""


@dataclass(frozen=True)
class Test:
    """Result of a test of the hypothesis that two means are equal.

    Attributes:
        name: name of the test.
        difference: difference of the means.
        low, high: ends of its 95 % interval.
        p: two-sided p value.
        deviation: standard deviation of the difference of one pair of seeds, as used by the test.
        coarse: the difference is not significant only because the observed variance was replaced by the larger one of
            rounding to whole validations.
    """

    __test__ = False  # pytest would collect the class because of its name.

    name: str
    difference: float
    low: float
    high: float
    p: float
    deviation: float
    coarse: bool


def paired_test(differences: Sequence[float], hidden: float = 0.0) -> Test | None:
    """Student's t-test on paired differences, at least two.

    It assumes independent seeds and approximately normal differences, as for logarithms of losses and of numbers of
    steps. It does not assume equal variances of the two sides.

    Args:
        differences: one per seed.
        hidden: variance of a difference that comes from rounding: a step is known only up to the next validation. The
            test uses at least this variance, because the observed variance is 0 if all seeds are rounded to the same
            validation.

    Returns:
        the result; None if every seed has exactly the same difference, not 0, and ``hidden`` is 0: then the variance is
        unknown.
    """
    n = len(differences)
    seen = variance(differences)
    return _test("paired t-test", fmean(differences), seen / n, hidden / n, n - 1, math.sqrt(max(seen, hidden)))


def welch_test(
    first: Sequence[float], second: Sequence[float], hidden_first: float = 0.0, hidden_second: float = 0.0
) -> Test | None:
    """Welch's t-test on two independent groups of at least two values, whose variances may differ.

    Arguments and result are as in `paired_test`. The degrees of freedom are those of Welch and Satterthwaite.
    """
    seen = variance(first) / len(first), variance(second) / len(second)
    hidden = hidden_first / len(first), hidden_second / len(second)
    parts = [max(pair) for pair in zip(seen, hidden, strict=True)]
    total = sum(parts)
    squares = sum(part**2 / (len(side) - 1) for part, side in zip(parts, (first, second), strict=True))
    df = total**2 / squares if squares else len(first) + len(second) - 2.0
    deviation = math.sqrt(total * min(len(first), len(second)))
    return _test("Welch's t-test", fmean(first) - fmean(second), sum(seen), total, df, deviation)


def _test(name: str, difference: float, seen: float, floor: float, df: float, deviation: float) -> Test | None:
    """A t-test with the larger one of two squared standard errors: ``seen`` (observed) and ``floor`` (rounding)."""
    # Differences of equal numbers can be tiny floating-point errors instead of 0.
    if max(seen, floor) < 1e-24:
        if abs(difference) > 1e-9:
            return None
        return Test(name, 0.0, 0.0, 0.0, 1.0, 0.0, coarse=False)
    error = math.sqrt(max(seen, floor))
    p = _two_sided(difference / error, df)
    half = _quantile(df, 0.975) * error
    without = _two_sided(difference / math.sqrt(seen), df) if seen > 1e-24 else 0.0
    coarse = floor > seen and abs(difference) > 1e-9 and without < 0.05
    return Test(name, difference, difference - half, difference + half, p, deviation, coarse)


def _two_sided(t: float, df: float) -> float:
    """Two-sided p value of Student's t: I_x(df/2, 1/2), the regularised beta function, with x = df / (df + t^2)."""
    # mpmath instead of SciPy: if SciPy is installed, Lightning imports parts of it and every start becomes slower.
    # mpmath is a dependency of torch (by SymPy). Imported here because only comparisons need it.
    import mpmath

    if math.isinf(t):
        return 0.0
    return float(mpmath.betainc(df / 2, 0.5, 0, df / (df + mpmath.mpf(t) ** 2), regularized=True))


@lru_cache(maxsize=4096)
def _quantile(df: float, probability: float) -> float:
    """Quantile of Student's t for a probability of at least one half."""
    import mpmath

    tail = 2 * (1 - probability)
    if tail >= 1:
        return 0.0
    # The logarithm of the tail probability is almost linear in log t. The normal quantile is a lower bound of t.
    start = math.log(NormalDist().inv_cdf(probability))
    log_t = mpmath.findroot(
        lambda u: math.log(_two_sided(math.exp(float(u)), df) / tail), (start, start + 0.5), tol=1e-20
    )
    return math.exp(log_t)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjustment: with it, the probability of at least one false positive stays below the level.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[at]))
        adjusted[at] = highest
    return adjusted


def seeds_needed(difference: float, deviation: float, level: float, most: int = 50) -> int | None:
    """Number of seeds with which a paired t-test finds such a difference with a power of 0.8; None if above ``most``.

    Args:
        difference: true difference of the means.
        deviation: standard deviation of the difference of one pair of seeds.
        level: significance level of the test.
        most: largest number of seeds that is considered.
    """

    def enough(n: int) -> bool:
        # The difference in standard errors must be at least the quantile of the level plus that of the power.
        t = abs(difference) * math.sqrt(n) / deviation - _quantile(n - 1, 0.8)
        return t > 0 and _two_sided(t, n - 1) <= level

    numbers = range(2, most + 1)
    first = bisect_left(numbers, True, key=enough)
    return numbers[first] if first < len(numbers) else None


def hidden_log_variance(before: float, at: float) -> float:
    """Variance of log x for x uniform on ``(before, at]``: the variance lost by rounding x up to the next validation.

    With r = before / at and u uniform on (r, 1], the moments of log u follow from the antiderivatives u log u - u and
    u log^2 u - 2 u log u + 2 u.
    """
    r = before / at if at > 0 else 1.0
    if r > 0.999:
        return (1 - r) ** 2 / 12
    log_r = math.log(r) if r > 0 else 0.0  # r log r and r log^2 r both converge to 0.
    first = (-1 - (r * log_r - r)) / (1 - r)
    second = (2 - (r * log_r**2 - 2 * r * log_r + 2 * r)) / (1 - r)
    return max(0.0, second - first**2)
