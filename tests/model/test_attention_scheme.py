"""What a position scheme may do in attention: rotate queries and keys, and bias the scores."""

import math

import pytest
import torch
from torch import Tensor, nn

from poslab import MultiHeadSelfAttention
from poslab.positions.alibi import ALiBi
from support.schemes import OnlyBiases, OnlyRotates


@pytest.mark.parametrize("return_weights", [False, True])
def test_queries_and_keys_are_rotated_and_values_are_not(return_weights: bool) -> None:
    seen = []

    class Watches(OnlyRotates):
        def rotate(self, x: Tensor, start: int = 0) -> Tensor:
            seen.append((x, start))
            return super().rotate(x, start)

    attention, x = MultiHeadSelfAttention(8, 2, 8), torch.randn(1, 8, 8)
    attention(x, return_weights, Watches(2, 8))
    q, k, _ = attention.qkv_proj(x).chunk(3, dim=-1)
    assert [start for _, start in seen] == [0, 0]
    assert torch.equal(seen[0][0], attention._split_heads(q))
    assert torch.equal(seen[1][0], attention._split_heads(k))


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("value", [0.0, 1e9, math.inf, -math.inf, math.nan])
def test_bias_above_the_diagonal_is_never_used(value: float, return_weights: bool) -> None:
    attention, x = MultiHeadSelfAttention(8, 2, 6), torch.randn(2, 6, 8)
    scheme, marked = OnlyBiases(2, 6), OnlyBiases(2, 6)
    with torch.no_grad():
        above = torch.ones(6, 6).triu(1).bool()
        marked.scores.copy_(scheme.scores.masked_fill(above, value))
    one, other = attention(x, return_weights, scheme), attention(x, return_weights, marked)
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("blocked", [-math.inf, -1e30])
def test_a_bias_can_hide_keys(blocked: float) -> None:
    """Head 0 sees its own position only, head 1 everything: both ways agree and nothing is NaN."""
    attention, x, scheme = MultiHeadSelfAttention(8, 2, 6), torch.randn(2, 6, 8), OnlyBiases(2, 6)
    with torch.no_grad():
        scheme.scores.zero_()
        scheme.scores[0] = torch.full((6, 6), blocked).fill_diagonal_(0)
    output, weights = attention(x, True, scheme)
    assert torch.equal(weights[:, 0], torch.eye(6).expand(2, 6, 6))
    torch.testing.assert_close(weights[:, 1], attention(x, True)[1][:, 1])
    torch.testing.assert_close(attention(x, positions=scheme), output)


def test_bias_is_added_after_the_scaling() -> None:
    """With q and k at zero the scores are the bias itself."""
    attention, scheme = MultiHeadSelfAttention(8, 2, 6), OnlyBiases(2, 6)
    nn.init.zeros_(attention.qkv_proj.weight)
    nn.init.zeros_(attention.qkv_proj.bias)
    _, weights = attention(torch.randn(1, 6, 8), True, scheme)
    hidden = torch.ones(6, 6).triu(1).bool()
    torch.testing.assert_close(weights[0], scheme.scores.masked_fill(hidden, -math.inf).softmax(-1))


def test_a_bias_goes_to_the_fused_kernel_too() -> None:
    # A mask of three axes would be taken apart into products and a softmax, seven times as slow.
    attention = MultiHeadSelfAttention(32, 4, 8).eval()
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        attention(torch.randn(2, 8, 32), positions=ALiBi(4))
    calls = {event.key for event in seen.key_averages()}
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in calls
    assert "aten::_scaled_dot_product_attention_math" not in calls
