"""Multi-head causal self-attention: its parameters, what it refuses, its properties, gradient and dropout."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from poslab import MultiHeadSelfAttention, count_parameters
from support.schemes import OnlyBiases, OnlyRotates, Turns

quick = settings(deadline=None, max_examples=100, derandomize=True)


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
