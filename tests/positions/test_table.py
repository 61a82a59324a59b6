"""Random positions while training, for the schemes with a table."""

import math

import pytest
import torch

from poslab import (
    LearnedPositionalEmbedding,
    PositionScheme,
    SinusoidalPositionalEmbedding,
)


def first_rows(**options: str) -> tuple[PositionScheme, list[list[int]]]:
    """Which rows 400 training batches of 5 tokens got, out of 8."""
    scheme = SinusoidalPositionalEmbedding(8, 4, **options).train()
    table = scheme.table()
    drawn = [[int((table - row).abs().sum(-1).argmin()) for row in scheme(5)] for _ in range(400)]
    return scheme, drawn


def test_a_random_offset_reaches_every_start_about_equally_often() -> None:
    scheme, drawn = first_rows(train_offset="random")
    assert {tuple(rows) for rows in drawn} == {tuple(range(start, start + 5)) for start in range(4)}
    for start in range(4):
        assert 70 < sum(rows[0] == start for rows in drawn) < 130
    assert torch.equal(scheme.eval()(5), scheme.table()[:5])


def test_random_positions_increase_and_reach_every_subset() -> None:
    scheme, drawn = first_rows(train_positions="random")
    assert all(rows == sorted(set(rows)) for rows in drawn)
    assert len({tuple(rows) for rows in drawn}) == math.comb(8, 5)
    assert torch.equal(scheme.eval()(5), scheme.table()[:5])


@pytest.mark.parametrize("option", ["train_offset", "train_positions"])
def test_training_at_full_length_leaves_nothing_to_draw(option: str) -> None:
    scheme = LearnedPositionalEmbedding(8, 4, **{option: "random"}).train()
    assert torch.equal(scheme(8), scheme.embedding.weight)


def test_random_rows_receive_the_gradient() -> None:
    scheme = LearnedPositionalEmbedding(9, 2, train_positions="random").train()
    rows = scheme(4)
    rows.sum().backward()
    touched = scheme.embedding.weight.grad.abs().sum(-1) > 0
    assert torch.equal(scheme.embedding.weight[touched], rows)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"train_offset": "rnd"}, "train_offset=rnd"),
        ({"train_positions": "all"}, "train_positions=all"),
        ({"train_offset": "random", "train_positions": "random"}, "exclude"),
    ],
)
@pytest.mark.parametrize("table", [LearnedPositionalEmbedding, SinusoidalPositionalEmbedding])
def test_unknown_or_double_choices_are_refused(table: type, options: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        table(8, 4, **options)
