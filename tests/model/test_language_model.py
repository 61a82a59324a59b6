"""The smallest whole model: shapes, causality, tied weights, sizes that do not fit."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from poslab import (
    LearnedPositionalEmbedding,
    PositionScheme,
    SinusoidalPositionalEmbedding,
    TinyAttentionLM,
    TokenEmbedding,
    count_parameters,
)
from poslab.positions import NoPositions

quick = settings(deadline=None, max_examples=30, derandomize=True)
SCHEMES = [
    lambda: None,
    lambda: LearnedPositionalEmbedding(12, 8),
    lambda: SinusoidalPositionalEmbedding(12, 8),
    NoPositions,
]


class Slopes(PositionScheme):
    """Made for these tests: a learned slope per head against distance, and a sign that flips with position."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.rand(n_heads))

    def rotate(self, x: Tensor, start: int = 0) -> Tensor:
        return x * (1 - 2 * (torch.arange(start, start + x.shape[-2]) % 2))[:, None]

    def bias(self, n_queries: int, n_keys: int) -> Tensor:
        queries, keys = torch.arange(n_keys - n_queries, n_keys), torch.arange(n_keys)
        return -self.slopes[:, None, None] * (queries[:, None] - keys)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("seq_len", [1, 5, 12])
def test_logits_and_weights_have_their_shapes(scheme, seq_len: int) -> None:
    model = TinyAttentionLM(10, 8, 2, 12, positions=scheme())
    ids = torch.randint(10, (3, seq_len))
    logits = model(ids)
    again, weights = model(ids, return_weights=True)
    assert logits.shape == (3, seq_len, 10)
    assert weights.shape == (3, 2, seq_len, seq_len)
    torch.testing.assert_close(again, logits)


def test_logits_are_token_plus_position_then_attention_then_head() -> None:
    model = TinyAttentionLM(10, 8, 2, 12)
    ids = torch.randint(10, (3, 5))
    x = model.token_embedding.embedding.weight[ids] + model.positions.table()[:5]
    expected = nn.functional.linear(model.attention(x), model.head.weight, model.head.bias)
    torch.testing.assert_close(model(ids), expected)


def test_without_positions_the_lesson_s_learned_table_is_used() -> None:
    model = TinyAttentionLM(65, 32, 4, 12)
    assert isinstance(model.positions, LearnedPositionalEmbedding)
    assert (model.positions.max_context_length, model.positions.d_model) == (12, 32)


def test_without_a_token_table_a_fresh_normal_one_is_used() -> None:
    weight = TinyAttentionLM(1000, 64, 4, 12).token_embedding.embedding.weight.detach()
    assert float(weight.std()) == pytest.approx(0.02, rel=0.02)


def test_given_tables_are_used_as_they_are() -> None:
    token, positions = TokenEmbedding(10, 8, token_init="hashed"), SinusoidalPositionalEmbedding(12, 8)
    model = TinyAttentionLM(10, 8, 2, 12, positions=positions, token_embedding=token)
    assert model.token_embedding is token
    assert model.positions is positions


def test_a_scheme_reaches_the_attention() -> None:
    """Both ways agree, the attention uses it, and its parameter is trained."""
    scheme = Slopes(2)
    model, plain = (
        TinyAttentionLM(10, 8, 2, 12, positions=scheme),
        TinyAttentionLM(10, 8, 2, 12, positions=NoPositions()),
    )
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if "slopes" not in name})
    ids = torch.randint(10, (3, 12))
    logits, weights = model(ids, return_weights=True)
    torch.testing.assert_close(model(ids), logits)
    assert not torch.allclose(weights, plain(ids, return_weights=True)[1])
    model(ids).square().sum().backward()
    assert float(scheme.slopes.grad.abs().min()) > 0


@pytest.mark.parametrize("scheme", [*SCHEMES, lambda: Slopes(2)])
@quick
@given(seq_len=st.integers(2, 12), seed=st.integers(0, 2**16), return_weights=st.booleans(), data=st.data())
def test_later_tokens_never_change_earlier_logits(
    scheme, seq_len: int, seed: int, return_weights: bool, data: st.DataObject
) -> None:
    torch.manual_seed(seed)
    model = TinyAttentionLM(10, 8, 2, 12, positions=scheme(), token_embedding=TokenEmbedding(10, 8, init_std=2.0))
    t = data.draw(st.integers(0, seq_len - 2))
    ids = torch.randint(10, (2, seq_len))
    changed = ids.clone()
    changed[:, t + 1 :] = (changed[:, t + 1 :] + torch.randint(1, 10, (2, seq_len - t - 1))) % 10
    before, after = model(ids, return_weights), model(changed, return_weights)
    if return_weights:
        before, after = before[0], after[0]
    torch.testing.assert_close(after[:, : t + 1], before[:, : t + 1], rtol=0, atol=1e-6)
    assert not torch.allclose(after[:, t + 1 :], before[:, t + 1 :], rtol=0, atol=1e-6)


def test_a_shorter_prefix_gives_the_same_logits() -> None:
    model = TinyAttentionLM(10, 8, 2, 12)
    ids = torch.randint(10, (3, 12))
    torch.testing.assert_close(model(ids[:, :7]), model(ids)[:, :7])


def test_attention_maps_are_the_weights_of_every_layer() -> None:
    model = TinyAttentionLM(10, 8, 2, 12)
    ids = torch.randint(10, (3, 7))
    maps = model.attention_maps(ids)
    assert len(maps) == 1
    assert torch.equal(maps[0], model(ids, return_weights=True)[1])
    torch.testing.assert_close(maps[0].sum(-1), torch.ones(3, 2, 7))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_whole_model_can_be_cast(scheme, dtype: torch.dtype) -> None:
    model = TinyAttentionLM(10, 8, 2, 12, positions=scheme()).to(dtype)
    ids = torch.randint(10, (3, 7))
    logits, _ = model(ids, return_weights=True)
    assert model(ids).dtype == logits.dtype == dtype
    torch.testing.assert_close(model(ids), logits, rtol=0, atol=1e-2)


def test_a_checkpoint_holds_parameters_only_and_loads_into_a_longer_context() -> None:
    model = TinyAttentionLM(10, 8, 2, 12, positions=SinusoidalPositionalEmbedding(12, 8))
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}
    longer = TinyAttentionLM(10, 8, 2, 40, positions=SinusoidalPositionalEmbedding(40, 8))
    longer.load_state_dict(model.state_dict())
    ids = torch.randint(10, (3, 12))
    torch.testing.assert_close(longer(ids), model(ids))


# Tied weights.


def untouched_rows(model: TinyAttentionLM) -> int:
    """Rows of the token table without gradient after one step on tokens 1 and 3."""
    logits = model(torch.tensor([[1, 3, 1]]))
    nn.functional.cross_entropy(logits[0], torch.tensor([3, 1, 3])).backward()
    return int((model.token_embedding.embedding.weight.grad.abs().sum(-1) == 0).sum())


def test_untied_only_the_rows_read_receive_gradient() -> None:
    model = TinyAttentionLM(10, 8, 2, 12)
    assert model.head.weight is not model.token_embedding.embedding.weight
    assert untouched_rows(model) == 8


def test_tied_every_row_receives_gradient() -> None:
    assert untouched_rows(TinyAttentionLM(10, 8, 2, 12, tie_embeddings=True)) == 0


def test_tied_head_and_table_are_one_matrix_counted_once() -> None:
    token = TokenEmbedding(10, 8, token_init="hashed")
    expected = token.embedding.weight.detach().clone()
    tied = TinyAttentionLM(10, 8, 2, 12, tie_embeddings=True, token_embedding=token)
    assert tied.head.weight is tied.token_embedding.embedding.weight
    assert torch.equal(tied.token_embedding.embedding.weight, expected)
    assert count_parameters(tied) == count_parameters(TinyAttentionLM(10, 8, 2, 12)) - 10 * 8
    ids = torch.randint(10, (2, 5))
    x = tied.attention(tied.embeddings(ids))
    torch.testing.assert_close(tied(ids), x @ expected.T + tied.head.bias)


def test_tied_stays_one_matrix_through_a_step() -> None:
    model = TinyAttentionLM(10, 8, 2, 12, tie_embeddings=True)
    untouched_rows(model)
    before = model.head.weight.detach().clone()
    torch.optim.Adam(model.parameters(), lr=0.1).step()
    assert torch.equal(model.head.weight, model.token_embedding.embedding.weight)
    assert not torch.equal(model.head.weight, before)


# What is refused.


@pytest.mark.parametrize(
    ("sizes", "options", "named"),
    [
        ((10, 8, 3, 12), {}, (8, 3)),
        ((0, 8, 2, 12), {}, (0,)),
        ((10, 8, 2, 0), {}, (0,)),
        ((10, 8, 2, 12), {"positions": LearnedPositionalEmbedding(12, 6)}, (8, 6)),
        ((10, 8, 2, 12), {"token_embedding": TokenEmbedding(5, 8)}, (10, 5)),
        ((10, 8, 2, 12), {"token_embedding": TokenEmbedding(5, 8), "tie_embeddings": True}, (10, 5)),
        ((10, 8, 2, 12), {"token_embedding": TokenEmbedding(10, 6), "positions": NoPositions()}, (8, 6)),
    ],
)
def test_sizes_that_do_not_fit_each_other_are_refused_with_the_numbers(
    sizes: tuple[int, ...], options: dict[str, object], named: tuple[int, ...]
) -> None:
    """When the model is built, not at its first batch."""
    with pytest.raises(ValueError, match=r"\d") as refusal:
        TinyAttentionLM(*sizes, **options)
    for number in named:
        assert re.search(rf"(?<![-\d]){number}\b", str(refusal.value))


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize(
    ("ids", "error", "named"),
    [
        (torch.zeros(1, 3, dtype=torch.int32), TypeError, "int32"),
        (torch.zeros(3, dtype=torch.int64), ValueError, r"\(3,\)"),
        (torch.full((1, 3), 10), ValueError, r"\b10\b.*\b10\b"),
        (torch.full((1, 3), -1), ValueError, r"-1\b.*\b10\b"),
        (torch.zeros(1, 13, dtype=torch.int64), ValueError, r"\b13\b.*\b12\b"),
        (torch.zeros(1, 0, dtype=torch.int64), ValueError, r"\b0\b.*\b12\b"),
    ],
)
def test_ids_that_do_not_fit_are_refused(ids: Tensor, error: type[Exception], named: str, return_weights: bool) -> None:
    with pytest.raises(error, match=named):
        TinyAttentionLM(10, 8, 2, 12)(ids, return_weights)


def test_a_scheme_without_end_leaves_the_limit_to_the_context() -> None:
    model = TinyAttentionLM(10, 8, 2, 12, positions=NoPositions())
    with pytest.raises(ValueError, match=r"\b13\b.*\b12\b"):
        model(torch.zeros(1, 13, dtype=torch.int64))
