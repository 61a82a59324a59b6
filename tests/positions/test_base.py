"""Position schemes: the interface, the learned table and the sinusoidal table."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from poslab import (
    LearnedPositionalEmbedding,
    PositionScheme,
    SinusoidalPositionalEmbedding,
    count_parameters,
    neighbour_cosine_curve,
)
from poslab.positions import NoPositions, default_scheme

TABLES = [LearnedPositionalEmbedding, SinusoidalPositionalEmbedding]
quick = settings(deadline=None, max_examples=100, derandomize=True)


def wave(position: int, column: int, d_model: int, base: float) -> float:
    """One number of the sinusoidal table, from the formula and the math module alone."""
    pair = column // 2
    angle = position / base ** (2 * pair / d_model)
    return math.cos(angle) if column % 2 else math.sin(angle)


# The interface: whatever a scheme does not override does nothing.


@pytest.mark.parametrize("scheme", [PositionScheme(), NoPositions()])
def test_a_scheme_does_nothing_until_it_overrides_something(scheme: PositionScheme) -> None:
    x = torch.randn(2, 3, 5, 4)
    assert scheme.embed(5) is None
    assert scheme(5) is None
    assert scheme.rotate(x) is x
    assert scheme.bias(5, 5) is None
    assert scheme.table() is None
    assert scheme.max_context_length is None
    assert scheme.d_model is None
    assert count_parameters(scheme) == 0
    assert scheme.state_dict() == {}


@pytest.mark.parametrize("table", TABLES)
def test_a_table_acts_in_embed_only(table: type[PositionScheme]) -> None:
    scheme = table(12, 8)
    x = torch.randn(2, 3, 5, 4)
    assert scheme.rotate(x) is x
    assert scheme.bias(5, 5) is None


# Facts of both tables.


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


# Learned.


def test_learned_has_one_parameter_per_cell() -> None:
    scheme = LearnedPositionalEmbedding(12, 32)
    assert count_parameters(scheme) == 12 * 32
    assert scheme.embedding.weight.shape == (12, 32)
    assert [name for name, _ in scheme.named_parameters()] == ["embedding.weight"]
    assert set(scheme.state_dict()) == {"embedding.weight"}


def test_learned_gradient_reaches_the_rows_in_use_only() -> None:
    scheme = LearnedPositionalEmbedding(6, 2)
    scheme.embed(2, start=3).backward(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    expected = torch.zeros(6, 2)
    expected[3] = torch.tensor([1.0, 2.0])
    expected[4] = torch.tensor([3.0, 4.0])
    assert torch.equal(scheme.embedding.weight.grad, expected)


@pytest.mark.parametrize("std", [None, 0.02, 0.5])
def test_learned_starts_normal(std: float | None) -> None:
    options = {} if std is None else {"init_std": std}
    weight = LearnedPositionalEmbedding(1000, 100, **options).embedding.weight.detach()
    std = 0.02 if std is None else std
    assert float(weight.std()) == pytest.approx(std, rel=0.01)
    assert abs(float(weight.mean())) < 4 * std / 100_000**0.5
    # A normal, not a uniform with the same spread: 68.3 % of it lies within one standard deviation.
    assert float((weight.abs() < std).float().mean()) == pytest.approx(0.6827, abs=0.006)


def test_learned_refuses_a_negative_spread() -> None:
    with pytest.raises(ValueError, match=r"-0\.1"):
        LearnedPositionalEmbedding(12, 8, init_std=-0.1)


def test_learned_table_for_diagnostics_is_detached() -> None:
    scheme = LearnedPositionalEmbedding(12, 8)
    assert not scheme.table().requires_grad
    assert torch.equal(scheme.table(), scheme.embedding.weight)


def test_fresh_learned_neighbours_are_near_zero_at_every_offset() -> None:
    scheme = LearnedPositionalEmbedding(128, 64)
    curve = neighbour_cosine_curve(scheme.table(), 64)
    assert max(map(abs, curve)) < 5 / (64 * 64) ** 0.5


@pytest.mark.parametrize(("rows", "width"), [(12, 32), (33, 16)])
def test_fresh_learned_neighbour_cosine_has_the_expected_spread(rows: int, width: int) -> None:
    """Mean 0 and spread about 1 / sqrt(D (n - 1)) over many fresh tables."""
    tables = 400
    values = torch.tensor(
        [neighbour_cosine_curve(LearnedPositionalEmbedding(rows, width).table(), 1)[0] for _ in range(tables)]
    )
    spread = 1 / math.sqrt(width * (rows - 1))
    assert abs(float(values.mean())) < 4 * spread / math.sqrt(tables)
    assert float(values.std()) == pytest.approx(spread, rel=0.15)


def test_the_lesson_uses_a_learned_table() -> None:
    scheme = default_scheme(12, 8)
    assert isinstance(scheme, LearnedPositionalEmbedding)
    assert (scheme.max_context_length, scheme.d_model) == (12, 8)


# Sinusoidal.


@pytest.mark.parametrize(
    ("length", "width", "base"), [(12, 32, None), (128, 64, None), (9, 2, None), (40, 6, 100.0), (3000, 8, None)]
)
def test_sinusoidal_follows_the_formula(length: int, width: int, base: float | None) -> None:
    options = {} if base is None else {"base": base}
    pe = SinusoidalPositionalEmbedding(length, width, **options).pe
    expected = [[wave(p, c, width, base or 10000.0) for c in range(width)] for p in range(length)]
    assert pe.shape == (length, width)
    torch.testing.assert_close(pe, torch.tensor(expected, dtype=torch.float32), rtol=0, atol=2e-6)


def test_sinusoidal_starts_with_sine_zero_and_cosine_one() -> None:
    pe = SinusoidalPositionalEmbedding(4, 6).pe
    assert pe[0].tolist() == [0, 1, 0, 1, 0, 1]
    assert pe[1, :2].tolist() == pytest.approx([math.sin(1), math.cos(1)], abs=1e-6)


def test_sinusoidal_has_no_parameters_and_stays_out_of_checkpoints() -> None:
    scheme = SinusoidalPositionalEmbedding(12, 8)
    assert list(scheme.parameters()) == []
    assert [name for name, _ in scheme.named_buffers()] == ["pe"]
    assert scheme.state_dict() == {}


def test_sinusoidal_of_another_length_loads_the_same_checkpoint() -> None:
    SinusoidalPositionalEmbedding(100, 8).load_state_dict(SinusoidalPositionalEmbedding(12, 8).state_dict())


def test_sinusoidal_follows_its_module() -> None:
    scheme = nn.ModuleList([SinusoidalPositionalEmbedding(12, 8)])
    assert scheme.to(torch.float64)[0](3).dtype == torch.float64
    assert scheme.to("meta")[0](3).device.type == "meta"


def test_sinusoidal_is_built_in_fp32_whatever_the_default_dtype() -> None:
    expected = SinusoidalPositionalEmbedding(128, 16).pe
    torch.set_default_dtype(torch.bfloat16)
    try:
        pe = SinusoidalPositionalEmbedding(128, 16).pe
    finally:
        torch.set_default_dtype(torch.float32)
    assert expected.dtype == pe.dtype == torch.float32
    assert torch.equal(pe, expected)


@pytest.mark.parametrize("width", [1, 7, 33])
def test_sinusoidal_refuses_an_odd_width(width: int) -> None:
    with pytest.raises(ValueError, match=rf"\b{width}\b"):
        SinusoidalPositionalEmbedding(12, width)


@pytest.mark.parametrize("base", [1.0, 0.5, 0.0, -2.0, math.nan])
def test_sinusoidal_refuses_a_base_without_a_wavelength(base: float) -> None:
    with pytest.raises(ValueError, match=str(base)):
        SinusoidalPositionalEmbedding(12, 8, base=base)


def test_sinusoidal_neighbour_cosine_of_the_lesson() -> None:
    curve = neighbour_cosine_curve(SinusoidalPositionalEmbedding(128, 64).pe, 6)
    assert curve == pytest.approx([0.9662, 0.8845, 0.7996, 0.7479, 0.7345, 0.7362], abs=6e-5)


@pytest.mark.parametrize(("width", "cosine"), [(16, 0.9356), (32, 0.9571), (64, 0.9662), (128, 0.9702)])
def test_sinusoidal_first_neighbour_by_width(width: int, cosine: float) -> None:
    assert neighbour_cosine_curve(SinusoidalPositionalEmbedding(128, width).pe, 1) == pytest.approx([cosine], abs=6e-5)


@pytest.mark.parametrize(("length", "width", "base"), [(12, 32, 10000.0), (40, 6, 50.0)])
def test_sinusoidal_neighbour_cosine_is_the_same_at_every_position(length: int, width: int, base: float) -> None:
    """(2/D) * sum_i cos(k / base^(2i/D)), pair of rows by pair of rows."""
    pe = SinusoidalPositionalEmbedding(length, width, base=base).pe
    for k in range(1, length):
        closed = 2 / width * sum(math.cos(k / base ** (2 * i / width)) for i in range(width // 2))
        cosines = torch.cosine_similarity(pe[:-k], pe[k:], dim=-1)
        torch.testing.assert_close(cosines, torch.full_like(cosines, closed), rtol=0, atol=2e-6)
        assert neighbour_cosine_curve(pe, k)[-1] == pytest.approx(closed, abs=2e-6)


@quick
@given(
    pairs=st.integers(1, 16),
    position=st.integers(0, 200),
    offset=st.integers(0, 200),
    base=st.sampled_from([10.0, 500.0, 10000.0]),
)
def test_sinusoidal_vector_at_p_plus_k_is_a_rotation_of_the_vector_at_p(
    pairs: int, position: int, offset: int, base: float
) -> None:
    """One rotation per (sin, cos) pair, whose angle depends on the offset and not on the position."""
    pe = SinusoidalPositionalEmbedding(401, 2 * pairs, base=base).pe
    for pair in range(pairs):
        angle = offset / base ** (pair / pairs)
        rotation = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        here = pe[position, 2 * pair : 2 * pair + 2]
        there = pe[position + offset, 2 * pair : 2 * pair + 2]
        torch.testing.assert_close(rotation @ here, there, rtol=0, atol=2e-6)
