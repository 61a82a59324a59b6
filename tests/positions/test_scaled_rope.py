"""Rotary positions that are slowed down for longer sequences, or that turn a part of the columns."""

import math
import re

import pytest
import torch
from rotary_embedding_torch import RotaryEmbedding

from poslab.positions import RotaryPositions

LONG = 150


@pytest.mark.parametrize("factor", [1.0, 2.0, 3.5])
def test_linear_scaling_is_interpolation(factor: float) -> None:
    x = torch.randn(2, 3, LONG, 16)
    expected = RotaryEmbedding(dim=16, interpolate_factor=factor).rotate_queries_or_keys(x).detach()
    found = RotaryPositions(16, scaling="linear", factor=factor).rotate(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("factor", [1.0, 2.0, 8.0])
def test_ntk_scaling_changes_the_base(factor: float) -> None:
    x = torch.randn(2, 3, LONG, 16)
    expected = RotaryEmbedding(dim=16, theta_rescale_factor=factor).rotate_queries_or_keys(x).detach()
    found = RotaryPositions(16, scaling="ntk", factor=factor).rotate(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_ntk_leaves_the_fastest_pair_and_slows_the_slowest_by_the_factor() -> None:
    plain = RotaryPositions(16).frequencies(torch.device("cpu"))
    scaled = RotaryPositions(16, scaling="ntk", factor=4.0).frequencies(torch.device("cpu"))
    assert float(scaled[0]) == float(plain[0]) == 1
    assert float(scaled[-1]) == pytest.approx(float(plain[-1]) / 4, rel=1e-5)


def yarn_by_hand(d: int, base: float, factor: float, length: int) -> list[float]:
    """The frequencies of the authors' code, one pair at a time."""
    found = []
    first = math.floor(d * math.log(length / (32 * 2 * math.pi)) / (2 * math.log(base)))
    last = math.ceil(d * math.log(length / (1 * 2 * math.pi)) / (2 * math.log(base)))
    first, last = max(first, 0), min(last, d - 1)
    for pair in range(d // 2):
        frequency = base ** (-2 * pair / d)
        kept = 1 - min(1.0, max(0.0, (pair - first) / (last - first)))
        found.append(frequency * kept + frequency / factor * (1 - kept))
    return found


@pytest.mark.parametrize(("d", "length"), [(128, 2048), (64, 4096), (16, 64)])
@pytest.mark.parametrize("factor", [2.0, 16.0])
def test_yarn_follows_the_authors_code(d: int, length: int, factor: float) -> None:
    scheme = RotaryPositions(d, scaling="yarn", factor=factor, max_context_length=length)
    expected = yarn_by_hand(d, 10000.0, factor, length)
    assert scheme.frequencies(torch.device("cpu")).tolist() == pytest.approx(expected, rel=1e-4)
    # Position 0 is not turned, so only the temperature is left.
    x = torch.randn(1, 2, 1, d)
    torch.testing.assert_close(scheme.rotate(x), x * (0.1 * math.log(factor) + 1))


def test_yarn_keeps_fast_pairs_and_slows_slow_ones_by_the_whole_factor() -> None:
    plain = RotaryPositions(128).frequencies(torch.device("cpu"))
    scaled = RotaryPositions(128, scaling="yarn", factor=4.0, max_context_length=2048).frequencies(torch.device("cpu"))
    turns = 2048 * plain / (2 * math.pi)
    assert torch.equal(scaled[turns > 40], plain[turns > 40])
    torch.testing.assert_close(scaled[turns < 0.9], plain[turns < 0.9] / 4)


@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.99, 1.0])
def test_a_fraction_turns_the_first_columns_and_leaves_the_others(fraction: float) -> None:
    x = torch.randn(2, 3, 40, 16)
    n = 2 * int(fraction * 8)
    found = RotaryPositions(16, fraction=fraction).rotate(x)
    assert torch.equal(found[..., :n], RotaryPositions(n).rotate(x[..., :n]))
    assert torch.equal(found[..., n:], x[..., n:])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"scaling": "cubic"}, "scaling=cubic"),
        ({"factor": 2.0}, "factor 2.0"),
        ({"scaling": "linear", "factor": 0.5}, "factor 0.5"),
        ({"scaling": "linear", "factor": math.nan}, "factor nan"),
        ({"fraction": 0.0}, "fraction 0.0"),
        ({"fraction": 1.5}, "fraction 1.5"),
        ({"fraction": 0.1}, "fraction 0.1"),
        ({"scaling": "yarn", "factor": 2.0}, "max_context_length"),
        ({"scaling": "ntk", "factor": 2.0, "fraction": 0.25}, "d_head 8"),
    ],
)
def test_options_without_a_meaning_are_refused(options: dict[str, float | str], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^[^\n]*{re.escape(named)}[^\n]*$"):
        RotaryPositions(8, **options)
