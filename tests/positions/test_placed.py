"""Every position scheme in conf/pos with positions of each row's own, such as random ones in training."""

import pytest
import torch
from torch import Tensor

from poslab.model import LanguageModel
from poslab.positions.base import Placed
from support.every_scheme import L, every_model, every_scheme, ids_of, model_of

T, FAR = 7, 40
# Where a row begins, or which of the places its tokens have.
START = torch.tensor([[0], [5], [31]])
SOME = torch.tensor([[0, 2, 3, 9, 20, 21, 39], [1, 2, 3, 4, 5, 6, 7], [5, 8, 13, 21, 30, 34, 38]])


def long_model(name: str, architecture: str) -> LanguageModel:
    return model_of(name, architecture, max_context_length=FAR)


def logits(model: LanguageModel, ids: Tensor, positions: Tensor, return_weights: bool = False) -> Tensor:
    placed = Placed(positions, FAR)
    return model(ids, return_weights=True, placed=placed)[0] if return_weights else model(ids, placed=placed)


@every_scheme
@every_model
@pytest.mark.parametrize("return_weights", [False, True])
def test_consecutive_positions_from_0_change_nothing(name: str, architecture: str, return_weights: bool) -> None:
    model = long_model(name, architecture)
    ids = ids_of(model, T)
    found = logits(model, ids, torch.arange(T).expand(3, T), return_weights)
    torch.testing.assert_close(found, model(ids), rtol=0, atol=2e-5)


@every_scheme
@every_model
def test_a_row_at_an_offset_is_the_end_of_a_longer_row(name: str, architecture: str) -> None:
    """Measured by what the row's first token sees of itself: nothing else is known of the tokens before."""
    model = long_model(name, architecture)
    ids = ids_of(model, T)
    found = logits(model, ids, START + torch.arange(T))
    for row in range(3):
        alone = logits(model, ids[row : row + 1], START[row] + torch.arange(T)[None])
        torch.testing.assert_close(found[row : row + 1], alone, rtol=0, atol=2e-5)


@every_scheme
def test_what_a_scheme_sees_is_what_it_says(name: str) -> None:
    model = long_model(name, "transformer")
    if name == "fire":
        # Up to its threshold it sees distances only.
        model.positions.initial_threshold = 3.0
    ids = ids_of(model, T)
    plain, moved, apart = (
        logits(model, ids, positions) for positions in (torch.arange(T).expand(3, T), START + torch.arange(T), SOME)
    )
    same = {"moved": torch.allclose(moved, plain, atol=1e-4), "apart": torch.allclose(apart, plain, atol=1e-4)}
    expected = {
        "order": {"moved": True, "apart": True},
        "distances": {"moved": True, "apart": False},
        "positions": {"moved": False, "apart": False},
    }
    assert same == expected[model.positions.sees]


@every_scheme
def test_gaps_are_the_rows_of_a_longer_sequence_without_the_others(name: str) -> None:
    """In attention alone, where what is left out can be hidden: rows that are not in the batch do not matter."""
    model = long_model(name, "attention")
    if model.positions.sees == "order":
        return
    ids = ids_of(model, T, batch=1)
    far = torch.zeros(1, FAR, dtype=torch.int64)
    far[:, SOME[0]] = ids
    scheme, attention = model.positions.layer(0), model.attention_layers()[0]
    x = model.embeddings(far)
    q, k, v = (attention._split_heads(part) for part in attention.qkv_proj(x).chunk(3, dim=-1))
    q, k = scheme.rotate(q), scheme.rotate_keys(k)
    scores = q @ k.transpose(-1, -2) / attention.d_head**0.5
    bias = scheme.bias(FAR, FAR)
    behind = torch.arange(FAR)[:, None] - torch.arange(FAR)
    content = scheme.content_bias(q, k, scheme.features(x), behind)
    scores = scores + (0 if bias is None else bias) + (0 if content is None else content)
    shown = scores[..., SOME[0], :][..., SOME[0]].masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
    mixed = attention.out_proj(attention._merge_heads(shown.softmax(-1) @ v[:, :, SOME[0]]))
    torch.testing.assert_close(logits(model, ids, SOME[:1]), model.head(mixed), rtol=1e-4, atol=1e-4)


def test_places_are_of_each_row_by_itself() -> None:
    assert Placed(SOME, FAR).distances().shape == (3, 1, T, T)
    assert Placed(SOME, FAR).distances()[2, 0, 6].tolist() == [33, 30, 25, 17, 8, 4, 0]
    assert L < FAR
