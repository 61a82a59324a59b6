"""Facts of both tables, learned and sinusoidal."""

import pytest
import torch

from poslab import (
    LearnedPositionalEmbedding,
    PositionScheme,
    SinusoidalPositionalEmbedding,
)

TABLES = [LearnedPositionalEmbedding, SinusoidalPositionalEmbedding]


@pytest.mark.parametrize("table", TABLES)
def test_a_table_acts_in_embed_only(table: type[PositionScheme]) -> None:
    scheme = table(12, 8)
    x = torch.randn(2, 3, 5, 4)
    assert scheme.rotate(x) is x
    assert scheme.bias(5, 5) is None


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("seq_len", [1, 5, 12])
def test_forward_gives_the_first_rows(table: type[PositionScheme], seq_len: int) -> None:
    scheme = table(12, 8)
    rows = scheme(seq_len)
    assert rows.shape == (seq_len, 8)
    assert torch.equal(rows, scheme.table()[:seq_len])
    assert torch.equal(rows, scheme.embed(seq_len))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("seq_len", "start"), [(1, 0), (1, 11), (5, 3), (5, 7), (12, 0)])
def test_start_gives_the_same_rows_as_the_whole_table(table: type[PositionScheme], seq_len: int, start: int) -> None:
    scheme = table(12, 8)
    assert torch.equal(scheme.embed(seq_len, start), scheme.table()[start : start + seq_len])


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("seq_len", [-1, 0, 13, 500])
def test_a_length_outside_the_table_is_refused_with_both_numbers(table: type[PositionScheme], seq_len: int) -> None:
    with pytest.raises(ValueError, match=rf"(?s)(?<!\d){seq_len}\b.*\b12\b"):
        table(12, 8)(seq_len)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("seq_len", "start"), [(1, 12), (5, 8), (3, -1), (0, 3)])
def test_positions_outside_the_table_are_refused(table: type[PositionScheme], seq_len: int, start: int) -> None:
    with pytest.raises(ValueError, match=rf"(?<!\d){start}\b.*\b12\b"):
        table(12, 8).embed(seq_len, start)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("length", "width"), [(0, 8), (-3, 8), (12, 0), (12, -2)])
def test_a_table_without_rows_or_columns_is_refused(table: type[PositionScheme], length: int, width: int) -> None:
    with pytest.raises(ValueError, match=rf"(?<!\d){length}\b.*(?<!\d){width}\b"):
        table(length, width)


@pytest.mark.parametrize("table", TABLES)
def test_sizes_can_be_read_back(table: type[PositionScheme]) -> None:
    scheme = table(12, 8)
    assert (scheme.max_context_length, scheme.d_model) == (12, 8)
