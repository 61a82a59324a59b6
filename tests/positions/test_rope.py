"""Rotary positions: scores depend on distances, and angles stay exact."""

import math

import pytest
import torch
from torch import Tensor

from poslab import (
    MultiHeadSelfAttention,
    PositionScheme,
)
from poslab.positions import RotaryPositions


class Later(PositionScheme):
    """Another scheme, with every query and key further back by the same number of positions."""

    def __init__(self, scheme: PositionScheme, by: int) -> None:
        super().__init__()
        self.scheme, self.by = scheme, by

    def rotate(self, x: Tensor, start: int = 0) -> Tensor:
        return self.scheme.rotate(x, start + self.by)


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("by", [1, 13, 500])
@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_rope_scores_do_not_change_when_all_positions_move(return_weights: bool, by: int, base: float) -> None:
    attention, x, scheme = MultiHeadSelfAttention(16, 2, 9), 3 * torch.randn(2, 9, 16), RotaryPositions(8, base)
    here, there = attention(x, return_weights, scheme), attention(x, return_weights, Later(scheme, by))
    torch.testing.assert_close(there, here, rtol=0, atol=2e-4)
    plain = attention(x, return_weights)
    assert not torch.allclose(here[1] if return_weights else here, plain[1] if return_weights else plain, atol=1e-2)


def test_rope_turns_each_pair_at_its_own_speed_and_keeps_its_length() -> None:
    x = torch.tensor([1.0, 0.0]).repeat(3).expand(1, 1, 5, 6)
    turned = RotaryPositions(6, base=1000.0).rotate(x)[0, 0]
    for position in range(5):
        for pair, speed in enumerate((1.0, 0.1, 0.01)):
            expected = [math.cos(position * speed), math.sin(position * speed)]
            assert turned[position, 2 * pair : 2 * pair + 2].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("lowered", ["cast", "autocast"])
def test_rope_angles_stay_exact_in_a_bf16_model(lowered: str) -> None:
    """Three digits of a frequency would be half a turn at position 1000."""
    x = torch.randint(-4, 5, (1, 1, 1000, 32)).float()
    scheme = RotaryPositions(32)
    expected = scheme.rotate(x)
    if lowered == "cast":
        scheme.to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=lowered == "autocast"):
        turned = scheme.rotate(x.bfloat16())
    assert turned.dtype == torch.bfloat16
    torch.testing.assert_close(turned.float(), expected, rtol=0, atol=0.02)


@pytest.mark.parametrize("d_head", [1, 3, 7])
def test_rope_refuses_an_odd_head(d_head: int) -> None:
    with pytest.raises(ValueError, match=rf"d_head {d_head} is odd"):
        RotaryPositions(d_head)
