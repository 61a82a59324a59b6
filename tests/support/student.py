"""Student's t by numerical integration: slow, and nothing that the product's own way shares."""

import math
from collections.abc import Sequence
from functools import cache
from statistics import fmean, variance

import numpy as np


def two_sided(t: float, df: float) -> float:
    """The chance of a Student's t beyond ``t`` on either side.

    With t = sqrt(df) tan(a) the density becomes cos(a)^(df - 1) on (-pi/2, pi/2), up to a constant.
    """
    # The error of the trapezoids is within 1e-5 of the tail for 200 degrees of freedom and fewer.
    from_zero = np.linspace(0, 1, 20_001)
    inside, outside = math.atan(abs(t) / math.sqrt(df)), math.pi / 2
    beyond = np.trapezoid(np.cos(inside + from_zero * (outside - inside)) ** (df - 1)) * (outside - inside)
    return float(beyond / (np.trapezoid(np.cos(from_zero * outside) ** (df - 1)) * outside))


@cache
def quantile(df: float, probability: float) -> float:
    """The t that is not passed with this probability (above one half), by bisection."""
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, df) > 2 * (1 - probability) else (low, middle)
    return low


def paired(first: Sequence[float], second: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """The paired t-test's two-sided p, and the 95 % interval of the mean difference."""
    return one_sample([one - two for one, two in zip(first, second, strict=True)])


def one_sample(values: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """The p of the mean being zero, and the mean's 95 % interval."""
    error = math.sqrt(variance(values) / len(values))
    half = quantile(len(values) - 1, 0.975) * error
    return two_sided(fmean(values) / error, len(values) - 1), (fmean(values) - half, fmean(values) + half)
