"""Intervals and tests for a comparison, each with its assumptions."""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean, median, variance
from typing import Any


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
    if len(values) < 2:
        return Interval(1, values[0], None, None)
    estimate = Estimate.of_mean(values)
    return Interval(len(values), estimate.mean, *estimate.interval(0.95))


def log_interval(values: Sequence[float]) -> Interval | None:
    """The geometric mean of positive values with its 95 % interval, computed on logarithms; None without values."""
    found = mean_interval([math.log(max(value, TINY)) for value in values])
    if found is None or found.low is None or found.high is None:
        return found and Interval(found.n, math.exp(found.mean), None, None)
    # The bounds keep exp() within the range of floats.
    return Interval(found.n, math.exp(found.mean), math.exp(max(found.low, -700)), math.exp(min(found.high, 700)))


TINY = 1e-12
"""Smallest value whose logarithm is taken; it replaces a loss of zero."""


Table = Mapping[Any, Mapping[Any, float]]
"""Numbers by setting and seed; not every setting needs to have every seed."""
LEAST_FOR_FLIPS = 6
"""With fewer seeds a sign-flip test cannot fall below p = 0.05."""
MOST_FLIPS = 2**12
FAR = 3 * 1.4826
"""A seed farther than this many median absolute deviations from the median, 3 standard deviations, is named."""


@dataclass(frozen=True)
class Estimate:
    """An estimated difference of two means, with its test by Student's t.

    Attributes:
        name: name of the test.
        mean: the difference.
        error: its standard error; at least that of rounding.
        df: degrees of freedom.
        seen: the standard error that was observed, without rounding.
        seeds: number of seeds.
        parts: of each seed, its part of the mean; empty without pairs.
        far: seeds whose difference is far from the others.
    """

    name: str
    mean: float
    error: float
    df: float
    seen: float
    seeds: int
    parts: tuple[float, ...] = ()
    far: tuple[Hashable, ...] = ()

    @classmethod
    def of_mean(cls, values: Sequence[float]) -> "Estimate":
        """The mean of at least two values of independent seeds."""
        n = len(values)
        error = math.sqrt(variance(values) / n)
        return cls("t-test", fmean(values), error, df=n - 1, seen=error, seeds=n)

    @property
    def deviation(self) -> float:
        """The standard deviation of the difference of one seed, averaged over settings."""
        return self.error * math.sqrt(self.seeds)

    @property
    def p(self) -> float:
        """The two-sided p value of no difference."""
        return self._p(self.error)

    @property
    def flips(self) -> float | None:
        """The p value of the sign-flip test; None with fewer than `LEAST_FOR_FLIPS` seeds or without pairs."""
        return _sign_flips(self.parts) if len(self.parts) >= LEAST_FOR_FLIPS else None

    @property
    def rounded(self) -> bool:
        """Whether the difference would be significant at 5 % but for the rounding."""
        return self.error > self.seen and abs(self.mean) > 1e-9 and self.p >= 0.05 and self._p(self.seen) < 0.05

    def _p(self, error: float) -> float:
        if error < 1e-12:
            return 1.0 if abs(self.mean) < 1e-9 else 0.0
        return _two_sided(self.mean / error, self.df)

    def interval(self, probability: float) -> tuple[float, float]:
        """The interval that covers the true difference with this probability."""
        half = _quantile(self.df, (1 + probability) / 2) * self.error
        return self.mean - half, self.mean + half

    @property
    def bound(self) -> float:
        """The difference, without a sign, that the true one exceeds with a probability of at most 5 %."""
        return max(map(abs, self.interval(0.9)))


def paired(differences: Table, hidden: Table | None = None) -> Estimate | None:
    """Student's t-test on paired differences: the mean over settings with equal weights, the seed as the unit.

    It assumes independent seeds and approximately normal differences, as for logarithms of losses and of numbers of
    steps. It does not assume equal variances of the two sides, nor independent settings. If every setting has the same
    seeds, it is the paired t-test on the means of the seeds over the settings; otherwise it has the degrees of freedom
    of Satterthwaite 1946, at most those of the seeds. `tested` says which settings count.

    Args:
        differences: by setting and seed.
        hidden: variance of each difference that comes from rounding. The test uses at least this variance, because the
            observed variance is 0 if all seeds are rounded to the same number.

    Returns:
        the result; None with fewer than two seeds in each setting, or if every difference is the same number, not 0,
        and nothing is rounded: then the variance is unknown.
    """
    used = tested(differences)
    if not used:
        return None
    share = 1 / len(used)
    means = {cell: fmean(row.values()) for cell, row in used.items()}
    # Each seed's part of the mean, and of its error: residuals are enlarged by the degree that a setting's mean takes.
    parts: dict[Hashable, float] = defaultdict(float)
    residuals: dict[Hashable, float] = defaultdict(float)
    effects: dict[Hashable, list[float]] = defaultdict(list)
    floor = 0.0
    variances: list[tuple[float, int]] = []
    for cell, row in used.items():
        n = len(row)
        variances.append((share**2 * variance(row.values()) / n, n - 1))
        for seed, value in row.items():
            parts[seed] += share * value / n
            residuals[seed] += share * (value - means[cell]) / n * math.sqrt(n / (n - 1))
            effects[seed].append(value - means[cell])
            floor += 0.0 if hidden is None else hidden[cell][seed] * (share / n) ** 2
    seen = math.sqrt(sum(residual**2 for residual in residuals.values()))
    mean, seeds = fmean(means.values()), len(parts)
    error = max(seen, math.sqrt(floor))
    if error < 1e-12 and abs(mean) > 1e-9:
        return None
    return Estimate(
        name="paired t-test",
        mean=mean,
        error=error,
        df=min(seeds - _groups(used), _satterthwaite(variances)),
        seen=seen,
        seeds=seeds,
        parts=tuple(parts.values()),
        far=_far({seed: fmean(values) for seed, values in effects.items()}) if seeds >= LEAST_FOR_FLIPS else (),
    )


def tested(table: Table) -> dict[Any, Mapping[Any, float]]:
    """The settings with at least three seeds, or with two if none has more: two say little of a variance."""
    rows = {cell: row for cell, row in table.items() if len(row) > 1}
    return {cell: row for cell, row in rows.items() if len(row) > 2} or rows


def _satterthwaite(variances: Sequence[tuple[float, int]]) -> float:
    """Degrees of freedom of a sum of independent variances, each with its own; infinite if all are 0."""
    squares = sum(value**2 / df for value, df in variances)
    return sum(value for value, _ in variances) ** 2 / squares if squares else math.inf


def _groups(table: Table) -> int:
    """Number of groups of settings that share no seed with another group; each has a mean of its own."""
    groups: list[set[Hashable]] = []
    for row in table.values():
        joined = [group for group in groups if group & row.keys()]
        groups = [group for group in groups if group not in joined] + [set(row).union(*joined)]
    return len(groups)


def _sign_flips(parts: Sequence[float]) -> float:
    """Two-sided p value: the share of all signs of the seeds' parts with which their sum is as large as it is."""
    import numpy as np

    n, least = len(parts), abs(sum(parts)) - 1e-12
    if 2**n <= MOST_FLIPS:
        signs = 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
        return float(np.mean(np.abs(signs @ np.array(parts)) >= least))
    signs = 1 - 2 * np.random.default_rng(0).integers(0, 2, (MOST_FLIPS, n))
    # The observed signs are one of the possible ones.
    return float((np.sum(np.abs(signs @ np.array(parts)) >= least) + 1) / (MOST_FLIPS + 1))


def _far(effects: Mapping[Hashable, float]) -> tuple[Hashable, ...]:
    middle = median(effects.values())
    spread = median(abs(value - middle) for value in effects.values())
    return tuple(seed for seed, value in effects.items() if spread and abs(value - middle) > FAR * spread)


def welch(
    first: Sequence[float], second: Sequence[float], hidden_first: float = 0.0, hidden_second: float = 0.0
) -> Estimate | None:
    """Welch's t-test on two independent groups of at least two values, whose variances may differ.

    Args:
        first, second: the groups.
        hidden_first, hidden_second: variance of a value that comes from rounding, as in `paired`.

    Returns:
        the result, as in `paired`. The degrees of freedom are those of Welch and Satterthwaite.
    """
    seen = variance(first) / len(first), variance(second) / len(second)
    hidden = hidden_first / len(first), hidden_second / len(second)
    parts = [max(pair) for pair in zip(seen, hidden, strict=True)]
    total, mean = sum(parts), fmean(first) - fmean(second)
    if total < 1e-24 and abs(mean) > 1e-9:
        return None
    squares = sum(part**2 / (len(side) - 1) for part, side in zip(parts, (first, second), strict=True))
    return Estimate(
        name="Welch's t-test",
        mean=mean,
        error=math.sqrt(total),
        df=total**2 / squares if squares else len(first) + len(second) - 2.0,
        seen=math.sqrt(sum(seen)),
        seeds=min(len(first), len(second)),
    )


def interaction(differences: Table) -> float | None:
    """P value of the hypothesis that a difference is the same in every setting: F of settings over seed residuals.

    Settings that share something with each other, such as their width, have residuals that vary together. The degrees
    of freedom are corrected for that. Source: Greenhouse and Geisser 1959.

    Args:
        differences: by setting and seed; every setting with the same seeds.

    Returns:
        None with fewer than two settings or seeds, or without any spread of the residuals.
    """
    rows = [[row[seed] for seed in sorted(row, key=str)] for row in differences.values()]
    settings, seeds = len(rows), len(rows[0]) if rows else 0
    if settings < 2 or seeds < 2:
        return None
    of_setting, of_seed = [fmean(row) for row in rows], [fmean(column) for column in zip(*rows, strict=True)]
    mean = fmean(of_setting)
    residuals = [
        [value - of_setting[i] - of_seed[j] + mean for j, value in enumerate(row)] for i, row in enumerate(rows)
    ]
    products = [[sum(map(float.__mul__, one, two)) for two in residuals] for one in residuals]
    rest = sum(row[at] for at, row in enumerate(products))
    if rest < 1e-18:
        return None
    epsilon = rest**2 / ((settings - 1) * sum(value**2 for row in products for value in row))
    f = seeds * (seeds - 1) * sum((each - mean) ** 2 for each in of_setting) / rest
    return _f_tail(f, epsilon * (settings - 1), epsilon * (settings - 1) * (seeds - 1))


def sign_test(ahead: int, behind: int) -> float:
    """Two-sided p value that a fair coin gives counts at least as unequal."""
    n, least = ahead + behind, min(ahead, behind)
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(least + 1)) / 2**n)


def _f_tail(f: float, first: float, second: float) -> float:
    """Probability that F exceeds ``f``: I_x(second/2, first/2) with x = second / (second + first f)."""
    import mpmath

    x = second / (second + first * mpmath.mpf(f))
    return float(mpmath.betainc(second / 2, first / 2, 0, x, regularized=True))


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


def seeds_needed(ratio: float, deviation: float, level: float, most: int = 200) -> int | None:
    """Number of seeds with which a paired t-test finds a ratio with a power of 0.8; None if above ``most``.

    Args:
        ratio: the true ratio, not 1.
        deviation: standard deviation of a seed's difference of logarithms.
        level: significance level of the test.
        most: largest number of seeds that is considered.
    """

    def enough(n: int) -> bool:
        # The difference in standard errors must be at least the quantile of the level plus that of the power.
        t = abs(math.log(ratio)) * math.sqrt(n) / deviation - _quantile(n - 1, 0.8)
        return t > 0 and _two_sided(t, n - 1) <= level

    if deviation < 1e-12:
        return 2
    numbers = range(2, most + 1)
    first = bisect_left(numbers, True, key=enough)
    return numbers[first] if first < len(numbers) else None


def deviation_range(deviation: float, df: float) -> tuple[float, float]:
    """The 80 % interval of a standard deviation that was estimated with these degrees of freedom."""
    return deviation * math.sqrt(df / _chi_square(df, 0.9)), deviation * math.sqrt(df / _chi_square(df, 0.1))


@lru_cache(maxsize=256)
def _chi_square(df: float, probability: float) -> float:
    """Quantile of the chi-square distribution."""
    import mpmath

    low, high = 0.0, df + 40 * math.sqrt(df)
    for _ in range(60):
        middle = (low + high) / 2
        below = mpmath.gammainc(df / 2, 0, middle / 2, regularized=True) < probability
        low, high = (middle, high) if below else (low, middle)
    return high


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
