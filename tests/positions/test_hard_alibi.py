"""Hard ALiBi: which head sees what."""

import math

import pytest
import torch

from poslab import (
    MultiHeadSelfAttention,
)
from poslab.positions import HardALiBi


@pytest.mark.parametrize(
    ("n_heads", "n_windows", "expected"),
    [
        (8, 4, [1, 2, 3, 4, None, None, None, None]),
        (4, None, [1, 2, None, None]),
        (3, None, [1, None, None]),
        (1, None, [None]),
        (2, 0, [None, None]),
        (3, 3, [1, 2, 3]),
    ],
)
@pytest.mark.parametrize("length", [1, 2, 7, 30])
def test_hard_alibi_head_h_sees_the_last_h_tokens_and_the_others_all(
    n_heads: int, n_windows: int | None, expected: list[int | None], length: int
) -> None:
    bias = HardALiBi(n_heads, n_windows).bias(length, length)
    assert bias.shape == (n_heads, length, length)
    assert set(bias.unique().tolist()) <= {0.0, -math.inf}
    for head, window in enumerate(expected):
        for i in range(length):
            seen = [j for j in range(i + 1) if float(bias[head, i, j]) == 0]
            assert seen == list(range(0 if window is None else max(0, i + 1 - window), i + 1))


@pytest.mark.parametrize("n_windows", [-1, 5])
def test_hard_alibi_refuses_more_windows_than_heads(n_windows: int) -> None:
    with pytest.raises(ValueError, match=rf"n_windows {n_windows}\b.*\b4\b"):
        HardALiBi(4, n_windows)


def test_hard_alibi_weights_are_zero_outside_the_window() -> None:
    """In both paths; with values that name their position the first head passes on its own token alone."""
    attention, x = MultiHeadSelfAttention(8, 4, 9), torch.randn(2, 9, 8)
    output, weights = attention(x, True, HardALiBi(4))
    assert torch.equal(weights[:, 0], torch.eye(9).expand(2, 9, 9))
    assert torch.equal((weights[0] > 0).sum(-1)[:, -1], torch.tensor([1, 2, 9, 9]))
    torch.testing.assert_close(attention(x, positions=HardALiBi(4)), output)


def test_without_a_restricted_head_a_person_is_told_that_it_is_none() -> None:
    assert "pos=hard_alibi with model.n_heads=1 restricts no head and is pos=none" in HardALiBi(1).note
    assert HardALiBi(2).note == ""
