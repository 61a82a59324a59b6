"""The sinusoidal table."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from poslab import (
    SinusoidalPositionalEmbedding,
    neighbour_cosine_curve,
)

quick = settings(deadline=None, max_examples=100, derandomize=True)


def wave(position: int, column: int, d_model: int, base: float) -> float:
    """One number of the sinusoidal table, from the formula and the math module alone."""
    pair = column // 2
    angle = position / base ** (2 * pair / d_model)
    return math.cos(angle) if column % 2 else math.sin(angle)


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


def test_the_scale_multiplies_the_table_and_its_longer_one() -> None:
    plain, scaled = SinusoidalPositionalEmbedding(12, 8), SinusoidalPositionalEmbedding(12, 8, scale=0.25)
    assert torch.equal(scaled.pe, 0.25 * plain.pe)
    for scheme in (plain, scaled):
        scheme.extend(40)
    assert torch.equal(scaled.pe, 0.25 * plain.pe)
    assert torch.equal(plain.pe, SinusoidalPositionalEmbedding(40, 8, scale=1.0).pe)


def test_a_negative_scale_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scale -0\.5 must not be negative"):
        SinusoidalPositionalEmbedding(12, 8, scale=-0.5)
