"""Numbers as the comparison prints them."""

import re

import numpy as np

from poslab.comparison.numbers import factor, number, p_value, percent, share_interval
from poslab.comparison.statistics import mean_interval


def test_a_mean_share_is_inside_its_own_interval() -> None:
    # Rounded down, the mean of these would be 99.9 % and both ends 100.0.
    assert share_interval(mean_interval([0.99967, 0.99966, 0.99968])) == "99.97 % [99.96, 99.97]"
    assert share_interval(mean_interval([1.0, 0.998, 1.0])) == "99.9 % [99.6, 100.0]"
    assert share_interval(mean_interval([0.5, 0.5])) == "50.0 %"
    draw = np.random.default_rng(0)
    for _ in range(500):
        shares = 1 - draw.random(3) * 10.0 ** -draw.integers(0, 6)
        mean, low, high = (float(part) for part in re.findall(r"[\d.]+", share_interval(mean_interval(list(shares)))))
        assert low <= mean <= high


def test_numbers_are_never_rounded_to_more_than_they_are() -> None:
    shares = (0.0, 1e-9, 0.0004, 0.29, 0.9996, 0.9999999, 1.0)
    assert [percent(share) for share in shares] == [
        "0.0 %", "0.0000 %", "0.04 %", "29.0 %", "99.96 %", "99.9999 %", "100.0 %",
    ]  # fmt: skip
    assert [factor(value) for value in (1.04, 1.94, 12.4, 2634.0)] == ["1.04x", "1.9x", "12x", "2,600x"]
    assert [number(value) for value in (0.0, 0.00131, 0.000131, 3.14159, 8833.0)] == [
        "0", "0.00131", "1.3e-4", "3.14", "8,833",
    ]  # fmt: skip
    assert [p_value(p) for p in (0.0001, 0.012, 1.0)] == ["p < 0.001", "p = 0.012", "p = 1"]
