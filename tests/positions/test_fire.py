"""FIRE against its formula in plain loops."""

import math
import re

import pytest
import torch
from torch import Tensor

from poslab import (
    count_parameters,
)
from poslab.positions import FIRE


def fire_by_hand(scheme: FIRE, length: int, c: float, threshold: float) -> Tensor:
    """Li et al. 2023, section 3, one cell and one hidden unit at a time."""
    one, two = scheme.network[0], scheme.network[2]
    first = list(zip(one.weight[:, 0].tolist(), one.bias.tolist(), strict=True))
    second = list(zip(two.weight.tolist(), two.bias.tolist(), strict=True))
    bias = torch.zeros(len(second), length, length)
    for i in range(length):
        for j in range(i + 1):
            x = math.log(c * (i - j) + 1) / math.log(c * max(threshold, i) + 1)
            hidden = [max(0.0, weight * x + shift) for weight, shift in first]
            for head, (weights, shift) in enumerate(second):
                bias[head, i, j] = sum(weight * h for weight, h in zip(weights, hidden, strict=True)) + shift
    return bias


@pytest.mark.parametrize(("c", "threshold"), [(0.1, 64.0), (0.1, 5.0), (2.0, 8.0)])
@pytest.mark.parametrize("length", [1, 2, 17])
def test_fire_follows_the_formula_on_both_sides_of_the_threshold(c: float, threshold: float, length: int) -> None:
    scheme = FIRE(3, hidden=4, c=c, threshold=threshold)
    torch.testing.assert_close(scheme.bias(length, length).tril(), fire_by_hand(scheme, length, c, threshold))


def test_fire_starts_where_the_paper_does() -> None:
    scheme = FIRE(2, hidden=5)
    torch.testing.assert_close(scheme.bias(80, 80).tril(), fire_by_hand(scheme, 80, 0.1, 64.0))
    assert count_parameters(FIRE(4)) == (32 + 32) + (4 * 32 + 4) + 2


def test_fire_depends_on_the_query_beyond_the_threshold_only() -> None:
    bias = FIRE(2, threshold=6.0).bias(12, 12)
    torch.testing.assert_close(bias[:, 5, 3], bias[:, 3, 1])
    torch.testing.assert_close(bias[:, 6, 4], bias[:, 3, 1])
    for i in range(7, 12):
        assert not torch.allclose(bias[:, i, i - 2], bias[:, i - 1, i - 3])
        # The furthest key is at 1, however long the sequence.
        torch.testing.assert_close(bias[:, i, 0], bias[:, 11, 0])


def test_a_threshold_far_above_the_length_weakens_fire() -> None:
    """The same network sees a smaller part of its input."""

    def spread(threshold: float) -> float:
        torch.manual_seed(0)
        return float(FIRE(4, threshold=threshold).bias(1, 20).detach().std(-1).mean())

    assert spread(2.0) > 1.5 * spread(64.0) > 1.5 * spread(4096.0)


def test_fire_learns_c_and_the_threshold() -> None:
    scheme = FIRE(2, c=0.5, threshold=8.0)
    with torch.no_grad():
        scheme.c.fill_(-0.25)
        scheme.threshold_factor.fill_(-1.5)
    # Magnitudes: the optimiser may take either below 0.
    torch.testing.assert_close(scheme.bias(20, 20).tril(), fire_by_hand(scheme, 20, 0.25, 12.0))


def test_the_bias_is_fp32_under_autocast() -> None:
    scheme = FIRE(3)
    with torch.autocast("cpu", torch.bfloat16):
        bias = scheme.bias(40, 40)
    assert bias.dtype == torch.float32
    torch.testing.assert_close(bias, scheme.bias(40, 40), rtol=0, atol=0)
    torch.testing.assert_close(bias.tril(), fire_by_hand(scheme, 40, 0.1, 64.0))


@pytest.mark.parametrize("name", ["c", "threshold_factor"])
def test_fire_stays_finite_where_c_or_the_threshold_is_zero(name: str) -> None:
    scheme = FIRE(2)
    with torch.no_grad():
        scheme.get_parameter(name).zero_()
    bias = scheme.bias(5, 5)
    bias.tril().square().sum().backward()
    assert bool(bias.isfinite().all())
    for parameter in scheme.parameters():
        assert bool(parameter.grad.isfinite().all())


@pytest.mark.parametrize("options", [{"hidden": 0}, {"c": 0.0}, {"c": -1.0}, {"threshold": 0.0}, {"c": math.nan}])
def test_fire_refuses_a_start_without_meaning(options: dict[str, float]) -> None:
    (value,) = options.values()
    with pytest.raises(ValueError, match=re.escape(str(value))):
        FIRE(4, **options)
