"""Output and weights of attention against loops over plain numbers and against torch's own attention."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from poslab import MultiHeadSelfAttention, PositionScheme
from support.schemes import Turns


def by_hand(
    attention: MultiHeadSelfAttention, x: Tensor, scheme: PositionScheme | None = None
) -> tuple[Tensor, Tensor]:
    """Output and weights, one example, head, query and key at a time."""
    d_head = attention.d_model // attention.n_heads
    outputs, maps = torch.empty_like(x), torch.zeros(x.shape[0], attention.n_heads, x.shape[1], x.shape[1])
    qkv = F.linear(x, attention.qkv_proj.weight, attention.qkv_proj.bias)
    bias = None if scheme is None else scheme.bias(x.shape[1], x.shape[1])
    for b in range(x.shape[0]):
        mixed = torch.empty(x.shape[1], attention.d_model)
        for h in range(attention.n_heads):
            q, k, v = (
                qkv[b, :, part * attention.d_model + h * d_head : part * attention.d_model + (h + 1) * d_head]
                for part in range(3)
            )
            if scheme is not None:
                q, k = scheme.rotate(q[None, None])[0, 0], scheme.rotate(k[None, None])[0, 0]
            for i in range(x.shape[1]):
                scores = torch.stack([q[i] @ k[j] for j in range(i + 1)]) / math.sqrt(d_head)
                if bias is not None:
                    scores = scores + bias[h, i, : i + 1]
                exponentials = (scores - scores.max()).exp()
                maps[b, h, i, : i + 1] = exponentials / exponentials.sum()
                mixed[i, h * d_head : (h + 1) * d_head] = sum(maps[b, h, i, j] * v[j] for j in range(i + 1))
        outputs[b] = F.linear(mixed, attention.out_proj.weight, attention.out_proj.bias)
    return outputs, maps


@pytest.mark.parametrize("with_scheme", [False, True])
def test_output_and_weights_by_hand(with_scheme: bool) -> None:
    attention, scheme = MultiHeadSelfAttention(12, 3, 6), Turns(3, 6) if with_scheme else None
    x = torch.randn(2, 5, 12)
    output, weights = attention(x, return_weights=True, positions=scheme)
    expected_output, expected_weights = by_hand(attention, x, scheme)
    torch.testing.assert_close(output, expected_output)
    torch.testing.assert_close(weights, expected_weights)
    torch.testing.assert_close(attention(x, positions=scheme), expected_output)


@pytest.mark.parametrize("n_heads", [1, 2, 4, 8])
def test_equals_the_fused_kernel_of_torch(n_heads: int) -> None:
    attention, x = MultiHeadSelfAttention(16, n_heads, 12), torch.randn(3, 7, 16)
    q, k, v = (
        part.view(3, 7, n_heads, 16 // n_heads).transpose(1, 2) for part in attention.qkv_proj(x).split(16, dim=-1)
    )
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected = attention.out_proj(mixed.transpose(1, 2).reshape(3, 7, 16))
    torch.testing.assert_close(attention(x), expected)
    torch.testing.assert_close(attention(x, return_weights=True)[0], expected)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n_heads", [1, 4])
def test_equals_multihead_attention_of_torch(n_heads: int, bias: bool) -> None:
    attention = MultiHeadSelfAttention(16, n_heads, 12, bias=bias)
    reference = nn.MultiheadAttention(16, n_heads, bias=bias, batch_first=True)
    with torch.no_grad():
        reference.in_proj_weight.copy_(attention.qkv_proj.weight)
        reference.out_proj.weight.copy_(attention.out_proj.weight)
        if bias:
            reference.in_proj_bias.copy_(attention.qkv_proj.bias)
            reference.out_proj.bias.copy_(attention.out_proj.bias)
    x = 2 * torch.randn(3, 9, 16)
    hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
    expected, expected_weights = reference(x, x, x, attn_mask=hidden, average_attn_weights=False)
    output, weights = attention(x, return_weights=True)
    torch.testing.assert_close(weights, expected_weights)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(attention(x), expected)


def test_without_weights_the_fused_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    kernel = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or kernel(*a, **k))
    attention, x = MultiHeadSelfAttention(8, 2, 6), torch.randn(2, 6, 8)
    attention(x)
    attention(x, positions=Turns(2, 6))
    assert len(calls) == 2
