"""The few statistics that a comparison needs, each with what it assumes."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean, variance


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval by Student's t; without an interval for fewer than two values."""

    n: int
    mean: float
    low: float | None
    high: float | None


def mean_interval(values: Sequence[float]) -> Interval | None:
    """The mean of values from independent seeds with its 95 % interval; None for no values."""
    if not values:
        return None
    mean = fmean(values)
    if len(values) < 2:
        return Interval(1, mean, None, None)
    half = _quantile(len(values) - 1, 0.975) * math.sqrt(variance(values) / len(values))
    return Interval(len(values), mean, mean - half, mean + half)


def log_interval(values: Sequence[float]) -> Interval | None:
    """The same for positive values on a logarithmic scale: the geometric mean and an interval by factors."""
    found = mean_interval([math.log(max(value, TINY)) for value in values])
    if found is None or found.low is None or found.high is None:
        return found and Interval(found.n, math.exp(found.mean), None, None)
    # A spread beyond any number is an interval without an end.
    return Interval(found.n, math.exp(found.mean), math.exp(max(found.low, -700)), math.exp(min(found.high, 700)))


TINY = 1e-12
"""Stands for a loss of zero, which has no logarithm."""


@dataclass(frozen=True)
class Test:
    """A difference of means, tested against none.

    Attributes:
        name: of the test.
        difference: of the means.
        low: end of its 95 % interval.
        high: end of its 95 % interval.
        p: two-sided.
        deviation: of the difference between two seeds, as the test sees it.
        coarse: the spread is smaller than what reading off at whole validations hides, which was used in its place,
            and only because of that the difference is not clear.
    """

    __test__ = False  # pytest: not a test of ours

    name: str
    difference: float
    low: float
    high: float
    p: float
    deviation: float
    coarse: bool


def paired_test(differences: Sequence[float], hidden: float = 0.0) -> Test | None:
    """Student's t-test on paired differences, at least two.

    Assumes that the differences come from independent seeds and are about normal, which logarithms of losses and of
    step counts are; it does not assume that the two sides spread alike.

    Args:
        differences: one per seed.
        hidden: variance of a difference that is there but cannot be seen, because both sides were read off on a grid.
            The variance is taken to be at least this: all seeds landing on the same grid point show no spread,
            and yet have some.

    Returns:
        None when every seed gave the very same difference, other than zero, and no grid explains it: then nothing
        is known about the spread.
    """
    n = len(differences)
    seen = variance(differences)
    return _test("paired t-test", fmean(differences), seen / n, hidden / n, n - 1, math.sqrt(max(seen, hidden)))


def welch_test(
    first: Sequence[float], second: Sequence[float], hidden_first: float = 0.0, hidden_second: float = 0.0
) -> Test | None:
    """Welch's t-test on two independent groups, at least two values each; they may spread differently.

    Arguments and result as in `paired_test`; degrees of freedom after Welch and Satterthwaite.
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
    """A t-test with the larger of two squared standard errors: the one seen, and the one that has to be there."""
    # Differences of equal numbers come out as rounding errors.
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
    """The chance of a Student's t beyond ``t`` on either side: I_x(df/2, 1/2) with x = df / (df + t^2)."""
    # Not SciPy: where it is installed, torchmetrics imports its signal processing with Lightning, 0.8 s of every start.
    # mpmath comes with torch (by SymPy), and is not needed before a comparison.
    import mpmath

    if math.isinf(t):
        return 0.0
    return float(mpmath.betainc(df / 2, 0.5, 0, df / (df + mpmath.mpf(t) ** 2), regularized=True))


@lru_cache(maxsize=4096)
def _quantile(df: float, probability: float) -> float:
    """The t that a Student's t stays below with a probability of at least one half."""
    import mpmath

    tail = 2 * (1 - probability)
    if tail >= 1:
        return 0.0
    # The logarithm of the tail is nearly straight in log t, and the normal distribution's t is never the larger one.
    start = math.log(NormalDist().inv_cdf(probability))
    log_t = mpmath.findroot(
        lambda u: math.log(_two_sided(math.exp(float(u)), df) / tail), (start, start + 0.5), tol=1e-20
    )
    return math.exp(log_t)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjustment (1979): the chance of one false claim or more among all of them stays below the level."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[at]))
        adjusted[at] = highest
    return adjusted


def seeds_needed(difference: float, deviation: float, level: float, most: int = 50) -> int | None:
    """Seeds that would show such a difference in four of five sweeps; None if more than ``most``."""

    def enough(n: int) -> bool:
        # The quantile of the level plus that of the power is within the difference in standard errors.
        room = abs(difference) * math.sqrt(n) / deviation - _quantile(n - 1, 0.8)
        return room > 0 and _two_sided(room, n - 1) <= level

    numbers = range(2, most + 1)
    first = bisect_left(numbers, True, key=enough)
    return numbers[first] if first < len(numbers) else None


def hidden_log_variance(before: float, at: float) -> float:
    """Variance of log x for x anywhere in ``(before, at]`` with equal chance: what a grid of validations hides.

    With r = before / at the moments of log u, u uniform on (r, 1], follow from the integrals u log u - u and
    u log^2 u - 2 u log u + 2 u.
    """
    r = before / at if at > 0 else 1.0
    if r > 0.999:
        return (1 - r) ** 2 / 12
    log_r = math.log(r) if r > 0 else 0.0  # r log r and r log^2 r both go to 0
    first = (-1 - (r * log_r - r)) / (1 - r)
    second = (2 - (r * log_r**2 - 2 * r * log_r + 2 * r)) / (1 - r)
    return max(0.0, second - first**2)
