"""The statistics behind the comparison, held against numerical integration, SciPy's values and simulation."""

import math

import numpy as np
import pytest

from poslab.comparison.statistics import (
    _quantile,
    _two_sided,
    hidden_log_variance,
    holm,
    log_interval,
    mean_interval,
    paired_test,
    seeds_needed,
    welch_test,
)
from support import student


def test_what_a_grid_hides_is_a_floor_under_the_spread() -> None:
    differences = [0.40, 0.41, 0.42]
    bare, rounded = paired_test(differences), paired_test(differences, hidden=0.06)
    assert bare is not None
    assert rounded is not None
    assert bare.p < 0.001
    # t = 0.41 / sqrt(0.06 / 3) = 2.9 with two degrees of freedom.
    assert rounded.p == pytest.approx(student.two_sided(0.41 / math.sqrt(0.02), 2))
    assert (bare.coarse, rounded.coarse) == (False, True)
    assert paired_test([0.1, 0.5, 0.9], hidden=0.06) == paired_test([0.1, 0.5, 0.9])


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
    paired = paired_test([a - b for a, b in zip(one, two, strict=True)])
    assert paired is not None
    p, interval = student.paired(one, two)
    assert paired.p == pytest.approx(p)
    assert (paired.low, paired.high) == pytest.approx(interval)
    welch = welch_test(one, rng.normal(1, 3, 4).tolist())
    assert welch is not None
    # scipy.stats.ttest_ind(equal_var=False) of the same numbers, SciPy 1.17.
    assert (welch.p, welch.low, welch.high) == pytest.approx((0.162379595, -1.772187135, 6.743479515))


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
    n = seeds_needed(0.5, 0.4, 0.05)
    assert n is not None
    powers = [
        np.mean(np.abs(x.mean(1)) / (x.std(1, ddof=1) / math.sqrt(k)) > student.quantile(k - 1, 0.975))
        for k in (n - 1, n)
        for x in [rng.normal(0.5, 0.4, (20_000, k))]
    ]
    assert powers[0] < 0.82
    assert powers[1] > 0.77
    assert seeds_needed(0.001, 1.0, 0.05) is None
