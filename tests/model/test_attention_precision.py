"""Attention in bf16, and the masked softmax in every precision."""

import math
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from poslab import MultiHeadSelfAttention, PositionScheme
from poslab.model.attention import masked_softmax
from support.schemes import OnlyBiases, OnlyRotates, Turns, TurnsInFp32


def by_cast(attention: MultiHeadSelfAttention, scheme: PositionScheme | None, x: Tensor) -> tuple[Tensor, nullcontext]:
    """bf16 by casting the attention, not the scheme: one that is shared or built on the fly keeps its own dtype."""
    attention.to(torch.bfloat16)
    return x.bfloat16(), nullcontext()


def by_autocast(
    attention: MultiHeadSelfAttention, scheme: PositionScheme | None, x: Tensor
) -> tuple[Tensor, torch.autocast]:
    return x, torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("kind", [None, Turns, OnlyRotates, OnlyBiases, TurnsInFp32])
@pytest.mark.parametrize("lowered", [by_cast, by_autocast])
def test_with_and_without_weights_agree_in_bf16(lowered: Callable, kind: type[Turns] | None) -> None:
    attention, scheme = MultiHeadSelfAttention(32, 4, 16), kind and kind(4, 16)
    x = torch.randn(4, 12, 32)
    exact = attention(x, positions=scheme)
    x, context = lowered(attention, scheme, x)
    with context:
        fused = attention(x, positions=scheme)
        in_the_open, weights = attention(x, return_weights=True, positions=scheme)
    assert fused.dtype == in_the_open.dtype == torch.bfloat16
    assert weights.dtype == torch.float32
    torch.testing.assert_close(fused, in_the_open, rtol=0, atol=1e-2)
    torch.testing.assert_close(fused.float(), exact, rtol=0, atol=2e-2)


@pytest.mark.parametrize("kind", [None, Turns])
@pytest.mark.parametrize("lowered", [by_cast, by_autocast])
def test_softmax_runs_in_fp32_for_a_bf16_input(lowered: Callable, kind: type[Turns] | None) -> None:
    """Rows add up to 1 far closer than bf16 (three digits) could."""
    attention, scheme = MultiHeadSelfAttention(32, 4, 64), kind and kind(4, 64)
    x, context = lowered(attention, scheme, torch.randn(2, 64, 32))
    with context:
        _, weights = attention(x, return_weights=True, positions=scheme)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 64), rtol=0, atol=1e-6)
    assert torch.equal(weights.triu(1), torch.zeros_like(weights))
    assert not torch.equal(weights, weights.bfloat16().float())


@pytest.mark.parametrize("lowered", [by_cast, by_autocast])
def test_scores_are_scaled_in_fp32_for_a_bf16_input(lowered: Callable) -> None:
    """Products that bf16 holds exactly give the weights of fp32: the division adds no rounding of its own."""
    attention = MultiHeadSelfAttention(2, 1, 8, bias=False)
    with torch.no_grad():
        attention.qkv_proj.weight.copy_(torch.eye(2).repeat(3, 1))
    whole = torch.randint(-4, 5, (3, 8, 2)).float()
    x, context = lowered(attention, None, whole)
    with context:
        _, weights = attention(x, return_weights=True)
    scores = whole @ whole.transpose(1, 2) / math.sqrt(2)
    expected = scores.masked_fill(torch.ones(8, 8).triu(1).bool(), -math.inf).softmax(-1)
    torch.testing.assert_close(weights[:, 0], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lowered", [by_cast, by_autocast])
def test_gradients_in_bf16_are_finite(lowered: Callable) -> None:
    attention, scheme = MultiHeadSelfAttention(32, 4, 16), Turns(4, 16)
    x, context = lowered(attention, scheme, torch.randn(2, 16, 32))
    for return_weights in (False, True):
        with context:
            result = attention(x, return_weights, scheme)
        (result[0] if return_weights else result).float().square().sum().backward()
        for parameter in (*attention.parameters(), scheme.scores):
            assert bool(parameter.grad.isfinite().all())
            assert float(parameter.grad.abs().sum()) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_masked_softmax_is_softmax_over_the_visible_cells(dtype: torch.dtype) -> None:
    scores = (5 * torch.randn(2, 3, 6, 6)).to(dtype)
    visible = torch.rand(6, 6) > 0.4
    visible[:, 0] = True
    weights = masked_softmax(scores, visible)
    assert weights.dtype == torch.float32
    for row in range(6):
        seen = visible[row]
        torch.testing.assert_close(weights[..., row, seen], scores[..., row, seen].float().softmax(-1))
        assert float(weights[..., row, ~seen].abs().sum()) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_masked_softmax_of_a_row_that_sees_nothing_is_zero(dtype: torch.dtype) -> None:
    visible = torch.tensor([[False, False, False], [True, False, True]])
    scores = torch.randn(2, 2, 3).to(dtype).requires_grad_()
    weights = masked_softmax(scores, visible)
    assert torch.equal(weights[:, 0], torch.zeros(2, 3))
    torch.testing.assert_close(weights[:, 1].sum(-1), torch.ones(2))
    weights.square().sum().backward()
    assert bool(scores.grad.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1e-6, 1.0, 6e4])
def test_masked_softmax_stays_finite_at_any_size(dtype: torch.dtype, size: float) -> None:
    weights = masked_softmax((size * torch.randn(4, 8, 8).clamp(-1, 1)).to(dtype), torch.ones(8, 8).tril().bool())
    assert bool(weights.isfinite().all())
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, 8))


def test_masked_softmax_takes_a_mask_per_example() -> None:
    visible = torch.tensor([[[True, False]], [[False, True]]])
    assert masked_softmax(torch.randn(2, 1, 2), visible).tolist() == [[[1, 0]], [[0, 1]]]
