"""Multi-head causal self-attention: against torch's own, its properties, and the places where a scheme acts."""

import math
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from poslab import MultiHeadSelfAttention, PositionScheme, count_parameters
from poslab.model.attention import masked_softmax
from poslab.positions.alibi import ALiBi

quick = settings(deadline=None, max_examples=100, derandomize=True)


class Turns(PositionScheme):
    """Made for these tests: turns each pair of columns by position, and biases each head by numbers of its own."""

    def __init__(self, n_heads: int, length: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.randn(n_heads, length, length))

    def rotate(self, x: Tensor, start: int = 0) -> Tensor:
        angle = torch.arange(start, start + x.shape[-2], device=x.device)[:, None] * 0.7
        even, odd = x[..., 0::2].float(), x[..., 1::2].float()
        turned = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
        return torch.stack(turned, dim=-1).flatten(-2).to(x.dtype)

    def bias(self, n_queries: int, n_keys: int) -> Tensor:
        return self.scores[:, n_keys - n_queries : n_keys, :n_keys]


class TurnsInFp32(Turns):
    """The same, with turned queries and keys left in fp32 whatever came in."""

    def rotate(self, x: Tensor, start: int = 0) -> Tensor:
        return super().rotate(x.float(), start)


class OnlyRotates(Turns):
    def bias(self, n_queries: int, n_keys: int) -> None:
        return None


class OnlyBiases(Turns):
    def rotate(self, x: Tensor, start: int = 0) -> Tensor:
        return x


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


sizes = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 3),
        "n_heads": st.sampled_from([1, 2, 3, 4]),
        "d_head": st.sampled_from([2, 4, 6]),
        "seq_len": st.integers(1, 9),
        "seed": st.integers(0, 2**16),
    }
)


def drawn(size: dict[str, int]) -> tuple[MultiHeadSelfAttention, Tensor, Turns]:
    """Attention, input and scheme of these sizes."""
    torch.manual_seed(size["seed"])
    d_model = size["n_heads"] * size["d_head"]
    attention = MultiHeadSelfAttention(d_model, size["n_heads"], 9)
    return attention, 3 * torch.randn(size["batch"], size["seq_len"], d_model), Turns(size["n_heads"], 9)


# Parts.


@pytest.mark.parametrize(("d_model", "n_heads"), [(32, 4), (6, 1), (5, 5)])
def test_two_projections_are_the_only_parameters(d_model: int, n_heads: int) -> None:
    attention = MultiHeadSelfAttention(d_model, n_heads, 12)
    names = {"qkv_proj.weight", "qkv_proj.bias", "out_proj.weight", "out_proj.bias"}
    assert {name for name, _ in attention.named_parameters()} == names
    assert attention.qkv_proj.weight.shape == (3 * d_model, d_model)
    assert attention.out_proj.weight.shape == (d_model, d_model)
    assert count_parameters(attention) == 4 * d_model**2 + 4 * d_model


def test_without_biases() -> None:
    assert count_parameters(MultiHeadSelfAttention(32, 4, 12, bias=False)) == 4 * 32**2


def test_the_causal_mask_is_a_buffer_outside_checkpoints() -> None:
    attention = MultiHeadSelfAttention(8, 2, 5)
    assert [name for name, _ in attention.named_buffers()] == ["causal_mask"]
    assert "causal_mask" not in attention.state_dict()
    assert attention.causal_mask.dtype == torch.bool
    assert attention.causal_mask.shape == (5, 5)
    assert attention.to("meta").causal_mask.device.type == "meta"
    MultiHeadSelfAttention(8, 2, 50).load_state_dict(MultiHeadSelfAttention(8, 2, 5).state_dict())


def test_head_h_gets_its_own_run_of_columns() -> None:
    attention = MultiHeadSelfAttention(6, 3, 4)
    columns = torch.arange(6.0).expand(2, 4, 6)
    heads = attention._split_heads(columns)
    assert heads.shape == (2, 3, 4, 2)
    for h in range(3):
        assert heads[:, h].unique().tolist() == [2 * h, 2 * h + 1]
    assert heads[1, 2, 3].tolist() == [4, 5]


@quick
@given(sizes)
def test_split_and_merge_undo_each_other(size: dict[str, int]) -> None:
    attention, x, _ = drawn(size)
    heads = attention._split_heads(x)
    assert heads.shape == (size["batch"], size["n_heads"], size["seq_len"], size["d_head"])
    assert torch.equal(attention._merge_heads(heads), x)
    assert torch.equal(attention._split_heads(attention._merge_heads(heads)), heads)


# What is refused.


@pytest.mark.parametrize(("d_model", "n_heads"), [(32, 5), (32, 0), (32, -4), (8, 16), (0, 1)])
def test_heads_that_do_not_divide_the_width_are_refused(d_model: int, n_heads: int) -> None:
    with pytest.raises(ValueError, match=rf"\b{d_model}\b.*(?<![-\d]){n_heads}\b"):
        MultiHeadSelfAttention(d_model, n_heads, 12)


@pytest.mark.parametrize("length", [0, -1])
def test_an_empty_context_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=rf"(?<![-\d]){length}\b"):
        MultiHeadSelfAttention(8, 2, length)


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 2.0])
def test_a_dropout_that_is_no_probability_is_refused(dropout: float) -> None:
    with pytest.raises(ValueError, match=f"dropout {dropout}"):
        MultiHeadSelfAttention(8, 2, 12, dropout=dropout)


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 16), (3, 8), (1, 2, 3, 8)])
def test_an_input_of_another_width_or_rank_is_refused(shape: tuple[int, ...], return_weights: bool) -> None:
    with pytest.raises(ValueError, match=r"\(.*\b8\b.*\)") as refusal:
        MultiHeadSelfAttention(8, 2, 12)(torch.randn(shape), return_weights)
    assert str(shape) in str(refusal.value)


@pytest.mark.parametrize("return_weights", [False, True])
def test_a_sequence_longer_than_the_context_is_refused(return_weights: bool) -> None:
    attention = MultiHeadSelfAttention(8, 2, 12)
    assert attention(torch.randn(1, 12, 8)).shape == (1, 12, 8)
    with pytest.raises(ValueError, match=r"\b13\b.*\b12\b"):
        attention(torch.randn(1, 13, 8), return_weights)


# Values.


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


# Properties.


@quick
@given(sizes, st.booleans(), st.booleans(), st.data())
def test_later_tokens_never_change_earlier_outputs(
    size: dict[str, int], return_weights: bool, with_scheme: bool, data: st.DataObject
) -> None:
    attention, x, scheme = drawn(size)
    t = data.draw(st.integers(0, size["seq_len"] - 1))
    changed = x.clone()
    changed[:, t + 1 :] = 50 * torch.randn_like(changed[:, t + 1 :])

    def outputs(x: Tensor) -> Tensor:
        result = attention(x, return_weights, scheme if with_scheme else None)
        return result[0] if return_weights else result

    torch.testing.assert_close(outputs(changed)[:, : t + 1], outputs(x)[:, : t + 1], rtol=0, atol=1e-5)
    x.requires_grad_()
    outputs(x)[:, : t + 1].square().sum().backward()
    assert torch.equal(x.grad[:, t + 1 :], torch.zeros_like(x.grad[:, t + 1 :]))
    assert float(x.grad[:, t].abs().sum()) > 0


@quick
@given(sizes, st.booleans())
def test_weight_rows_sum_to_one_and_are_zero_above_the_diagonal(size: dict[str, int], with_scheme: bool) -> None:
    attention, x, scheme = drawn(size)
    _, weights = attention(x, True, scheme if with_scheme else None)
    assert weights.shape == (size["batch"], size["n_heads"], size["seq_len"], size["seq_len"])
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]), rtol=0, atol=1e-6)
    assert torch.equal(weights.triu(1), torch.zeros_like(weights))
    # On and below the diagonal every key is seen.
    assert bool((weights.detach() + torch.ones_like(weights).triu(1) > 0).all())
    assert torch.equal(weights[:, :, 0, 0], torch.ones_like(weights[:, :, 0, 0]))


@quick
@given(sizes)
def test_a_longer_context_changes_nothing(size: dict[str, int]) -> None:
    """The mask is sliced to the sequence at hand."""
    attention, x, scheme = drawn(size)
    exact = MultiHeadSelfAttention(attention.d_model, attention.n_heads, size["seq_len"])
    exact.load_state_dict(attention.state_dict())
    assert torch.equal(attention(x, True)[1], exact(x, True)[1])
    assert torch.equal(attention(x, positions=scheme), exact(x, positions=scheme))


@quick
@given(sizes, st.sampled_from([None, Turns, OnlyRotates, OnlyBiases]))
def test_with_and_without_weights_agree(size: dict[str, int], kind: type[Turns] | None) -> None:
    """Outputs, and the gradients of input, parameters and scheme."""
    attention, x, _ = drawn(size)
    scheme = kind and kind(size["n_heads"], 9)
    x.requires_grad_()
    leaves = [x, *attention.parameters()]
    if kind in (Turns, OnlyBiases):
        leaves.append(scheme.scores)
    fused = attention(x, positions=scheme)
    in_the_open, _ = attention(x, return_weights=True, positions=scheme)
    torch.testing.assert_close(fused, in_the_open, rtol=1e-4, atol=1e-5)
    upstream = torch.randn_like(fused)
    for one, other in zip(
        torch.autograd.grad(fused, leaves, upstream), torch.autograd.grad(in_the_open, leaves, upstream), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-4)


# Low precision.


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


# Masked softmax.


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


# What a scheme may do.


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


# Gradient and dropout.


@pytest.mark.parametrize("return_weights", [False, True])
def test_gradient_reaches_every_parameter(return_weights: bool) -> None:
    attention = MultiHeadSelfAttention(16, 4, 12)
    result = attention(torch.randn(2, 12, 16), return_weights)
    (result[0] if return_weights else result).square().sum().backward()
    for name, parameter in attention.named_parameters():
        assert bool(parameter.grad.isfinite().all()), name
        assert float(parameter.grad.abs().sum()) > 0, name


def test_gradient_reaches_the_parameters_through_the_weights() -> None:
    attention = MultiHeadSelfAttention(16, 4, 12)
    attention(torch.randn(2, 12, 16), return_weights=True)[1].square().sum().backward()
    assert float(attention.qkv_proj.weight.grad[:32].abs().sum()) > 0
    assert float(attention.qkv_proj.weight.grad[32:].abs().sum()) == 0


@pytest.mark.parametrize("with_scheme", [False, True])
def test_dropout_acts_in_training_only_and_never_on_the_weights_shown(with_scheme: bool) -> None:
    attention = MultiHeadSelfAttention(8, 2, 12, dropout=0.5)
    scheme = Turns(2, 12) if with_scheme else None
    plain = MultiHeadSelfAttention(8, 2, 12)
    plain.load_state_dict(attention.state_dict())
    x = torch.randn(2, 12, 8)
    expected, expected_weights = plain(x, True, scheme)
    for return_weights in (False, True):
        attention.train()
        trained = attention(x, return_weights, scheme)
        if return_weights:
            torch.testing.assert_close(trained[1], expected_weights)
            trained = trained[0]
        assert not torch.allclose(trained, expected)
        attention.eval()
        evaluated = attention(x, return_weights, scheme)
        torch.testing.assert_close(evaluated[0] if return_weights else evaluated, expected)


@pytest.mark.parametrize("return_weights", [False, True])
def test_dropout_keeps_the_mean(return_weights: bool) -> None:
    attention = MultiHeadSelfAttention(8, 2, 4, dropout=0.25)
    x = torch.randn(1, 4, 8)
    many = attention(x.expand(4000, 4, 8), return_weights)
    many = many[0] if return_weights else many
    torch.testing.assert_close(many.mean(0), attention.eval()(x)[0], rtol=0, atol=0.03)


def test_a_bias_goes_to_the_fused_kernel_too() -> None:
    # A mask of three axes would be taken apart into products and a softmax, seven times as slow.
    attention = MultiHeadSelfAttention(32, 4, 8).eval()
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        attention(torch.randn(2, 8, 32), positions=ALiBi(4))
    calls = {event.key for event in seen.key_averages()}
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in calls
    assert "aten::_scaled_dot_product_attention_math" not in calls
