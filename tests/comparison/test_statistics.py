"""The statistics behind the comparison, held against numerical integration, SciPy's values and simulation."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from poslab.comparison.statistics import (
    _quantile,
    _two_sided,
    deviation_range,
    hidden_log_variance,
    holm,
    interaction,
    log_interval,
    mean_interval,
    paired,
    seeds_needed,
    sign_test,
    welch,
)
from support import student


def one_setting(values: Sequence[float]) -> dict[str, dict[int, float]]:
    return {"setting": dict(enumerate(values))}


def test_rounding_is_a_floor_under_the_spread() -> None:
    differences = one_setting([0.40, 0.41, 0.42])
    bare, rounded = paired(differences), paired(differences, hidden=one_setting([0.06] * 3))
    assert bare is not None
    assert rounded is not None
    assert bare.p < 0.001
    # t = 0.41 / sqrt(0.06 / 3) = 2.9 with two degrees of freedom.
    assert rounded.p == pytest.approx(student.two_sided(0.41 / math.sqrt(0.02), 2))
    assert (bare.rounded, rounded.rounded) == (False, True)
    wide = one_setting([0.1, 0.5, 0.9])
    assert paired(wide, hidden=one_setting([0.06] * 3)) == paired(wide)


@pytest.mark.parametrize(
    ("t", "df", "p"),
    # scipy.stats.t.sf of SciPy 1.17, doubled.
    [
        (12.706204736, 1, 0.05),
        (-2.5, 3.7, 0.071822022912),
        (4.0, 30, 0.000381845636),
        (40.0, 9, 1.8982998449e-11),
        (0.001, 2, 0.999292893),
        (1.9602012636, 1e4, 0.05),
        (0.0, 5, 1.0),
    ],
)
def test_students_t_is_scipys(t: float, df: float, p: float) -> None:
    assert _two_sided(t, df) == pytest.approx(p, rel=1e-7, abs=0)


@pytest.mark.parametrize("df", [1, 1.3, 2, 4.7, 30, 200])
@pytest.mark.parametrize("probability", [0.6, 0.8, 0.975, 0.9999])
def test_quantiles_undo_the_tail(df: float, probability: float) -> None:
    found = _quantile(df, probability)
    assert student.two_sided(found, df) == pytest.approx(2 * (1 - probability), rel=1e-5)
    assert _quantile(df, 0.5) == 0


def test_the_tests_are_the_textbooks() -> None:
    rng = np.random.default_rng(0)
    one, two = rng.normal(0, 1, 6).tolist(), rng.normal(0.5, 2, 6).tolist()
    found = paired(one_setting([a - b for a, b in zip(one, two, strict=True)]))
    assert found is not None
    p, interval = student.paired(one, two)
    assert found.p == pytest.approx(p)
    assert found.interval(0.95) == pytest.approx(interval)
    unpaired = welch(one, rng.normal(1, 3, 4).tolist())
    assert unpaired is not None
    # scipy.stats.ttest_ind(equal_var=False) of the same numbers, SciPy 1.17.
    assert (unpaired.p, *unpaired.interval(0.95)) == pytest.approx((0.162379595, -1.772187135, 6.743479515))


def test_settings_with_the_same_seeds_are_averaged_before_the_test() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(0.3, 1, (4, 5))
    found = paired({at: dict(enumerate(row)) for at, row in enumerate(values.tolist())})
    assert found is not None
    p, interval = student.one_sample(values.mean(0).tolist())
    assert (found.p, found.df, found.seeds) == (pytest.approx(p), 4, 5)
    assert found.interval(0.95) == pytest.approx(interval)


def test_settings_with_seeds_of_their_own_add_up_their_variances() -> None:
    one, two = [0.1, 0.5, 0.4], [1.0, 1.3, 0.9, 1.4]
    found = paired({"a": dict(enumerate(one)), "b": {10 + at: value for at, value in enumerate(two)}})
    assert found is not None
    assert found.mean == pytest.approx((np.mean(one) + np.mean(two)) / 2), "equal weights, whatever the number of seeds"
    variance = (np.var(one, ddof=1) / 3 + np.var(two, ddof=1) / 4) / 4
    assert found.error == pytest.approx(math.sqrt(variance))
    # Satterthwaite: (sum of variances)^2 / sum of variance^2 / df.
    parts = [np.var(one, ddof=1) / 3, np.var(two, ddof=1) / 4]
    assert found.df == pytest.approx(sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2 / 3))
    assert paired({"a": dict(enumerate(two)), "b": {0: 1.0, 1: 2.0}}) == paired({"a": dict(enumerate(two))})
    assert paired({"a": dict(enumerate(one)), "b": {9: 5.0}}) == paired({"a": dict(enumerate(one))})
    assert paired({"a": {1: 0.5}, "b": {2: 0.7}}) is None


def test_an_unbalanced_grid_covers_the_truth() -> None:
    """Every setting lacks other seeds, and a seed moves all of its settings: the interval still covers 95 %."""
    rng, covered = np.random.default_rng(2), 0
    for _ in range(600):
        seed, cell = rng.normal(0, 1, 6), rng.normal(0, 3, 3)
        values = 0.5 + seed + (cell - cell.mean())[:, None] + rng.normal(0, 0.5, (3, 6))
        table = {at: {n: values[at, n] for n in range(6) if (n + at) % 3} for at in range(3)}
        found = paired(table)
        assert found is not None
        low, high = found.interval(0.95)
        covered += low <= 0.5 <= high
    assert 0.92 <= covered / 600 <= 0.98


def test_signs_are_flipped_from_six_seeds_on_and_a_far_seed_is_named() -> None:
    five, six = paired(one_setting([1.0, 2, 3, 4, 5])), paired(one_setting([1.0, 2, 3, 4, 5, 6]))
    assert five is not None
    assert six is not None
    assert five.flips is None
    # All the same sign: two of the 64 sums of signs are as large.
    assert six.flips == pytest.approx(2 / 64)
    mixed = paired(one_setting([1.0, 2, 3, -4, 5, 6]))
    assert mixed is not None
    # |sum| = 13 or more: subsets of {1..6} that sum to at most 4 (1, 2, 3, 4, 1+2, 1+3, none), both signs.
    assert mixed.flips == pytest.approx(14 / 64)
    far = paired(one_setting([0.1, 0.11, 0.09, 0.1, 0.12, 0.08, 3.0]))
    assert far is not None
    assert far.far == (6,)
    many = paired(one_setting([0.1 * (-1) ** n + 0.02 for n in range(20)]))
    assert many is not None
    assert many.flips is not None
    assert 0.1 < many.flips < 0.8


def test_the_interaction_is_a_two_way_analysis_of_variance() -> None:
    # Textbook sums of squares: two settings and three seeds, so t of the differences between settings, squared.
    one, two = [0.1, 0.3, 0.2], [0.9, 0.8, 1.2]
    p, _ = student.paired(one, two)
    assert interaction({"a": dict(enumerate(one)), "b": dict(enumerate(two))}) == pytest.approx(p)
    assert interaction({"a": dict(enumerate(one))}) is None
    assert interaction({"a": {0: 1.0, 1: 2.0}, "b": {0: 2.0, 1: 3.0}}) is None, "no spread to test against"


def test_a_sign_test_is_a_fair_coin() -> None:
    assert sign_test(6, 0) == pytest.approx(2 / 64)
    assert sign_test(5, 1) == pytest.approx(2 * 7 / 64)
    assert sign_test(3, 3) == 1.0


def test_the_range_of_a_deviation_is_chi_squared() -> None:
    rng, df = np.random.default_rng(3), 4
    found = np.sqrt(rng.chisquare(df, 200_000) / df)
    lows, highs = deviation_range(1.0, df)
    # The deviation 1 is in the range around a share of 80 % of the deviations that are found.
    assert np.mean((lows * found <= 1) & (highs * found >= 1)) == pytest.approx(0.8, abs=0.005)


def test_intervals_are_students() -> None:
    interval = mean_interval([1.0, 2.0, 3.0])
    assert interval is not None
    # 4.302653 is the 97.5 % point of t with two degrees of freedom.
    assert (interval.n, interval.mean) == (3, 2.0)
    assert interval.high == pytest.approx(2 + 4.302653 / math.sqrt(3))
    alone = mean_interval([5.0])
    assert alone is not None
    assert (alone.n, alone.mean, alone.low, alone.high) == (1, 5.0, None, None)
    assert mean_interval([]) is None
    geometric = log_interval([1.0, 100.0])
    assert geometric is not None
    assert geometric.mean == pytest.approx(10)
    assert log_interval([0.0, 1e9]) is not None


def test_holms_adjustment() -> None:
    # The example of Holm (1979) as R's p.adjust computes it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.parametrize(("before", "at"), [(0, 120), (120, 240), (9980, 10000)])
def test_what_a_grid_hides(before: int, at: int) -> None:
    x = np.log(np.linspace(before, at, 2_000_001)[1:])
    assert hidden_log_variance(before, at) == pytest.approx(x.var(), rel=1e-3)


def test_seeds_needed_for_four_in_five() -> None:
    rng = np.random.default_rng(1)
    n = seeds_needed(math.exp(0.5), 0.4, 0.05)
    assert n is not None
    powers = [
        np.mean(np.abs(x.mean(1)) / (x.std(1, ddof=1) / math.sqrt(k)) > student.quantile(k - 1, 0.975))
        for k in (n - 1, n)
        for x in [rng.normal(0.5, 0.4, (20_000, k))]
    ]
    assert powers[0] < 0.82
    assert powers[1] > 0.77
    assert seeds_needed(1.001, 1.0, 0.05) is None
