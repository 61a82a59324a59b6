"""The learned table."""

import math

import pytest
import torch

from poslab import (
    LearnedPositionalEmbedding,
    count_parameters,
    neighbour_cosine_curve,
)
from poslab.positions import default_scheme


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
