"""How many parameters a model trains, whole and by part."""

import pytest
import torch
from torch import nn

from poslab import SinusoidalPositionalEmbedding, TinyAttentionLM, count_parameters
from poslab.model import parameters_by_part
from poslab.positions import NoPositions

DEFAULT = (65, 32, 4, 12)


def test_counts_trainable_parameters() -> None:
    assert count_parameters(nn.Linear(3, 5)) == 3 * 5 + 5
    assert count_parameters(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2, bias=False))) == 30
    assert count_parameters(nn.ReLU()) == 0


def test_buffers_are_not_counted() -> None:
    assert count_parameters(nn.BatchNorm1d(4)) == 8
    assert count_parameters(SinusoidalPositionalEmbedding(12, 32)) == 0


def test_a_shared_parameter_counts_once() -> None:
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    other.weight = one.weight
    assert count_parameters(nn.Sequential(one, other)) == 16 + 4 + 4
    assert count_parameters(nn.Sequential(one, one)) == 16 + 4


def test_frozen_parameters_are_not_counted() -> None:
    layer = nn.Linear(3, 5)
    layer.bias.requires_grad_(False)
    assert count_parameters(layer) == 15
    assert parameters_by_part({"layer": layer}) == {"total": 15, "layer": 15}


def test_by_part_a_shared_parameter_belongs_to_the_first() -> None:
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    other.weight = one.weight
    assert parameters_by_part({"one": one, "other": other}) == {"total": 24, "one": 20, "other": 4}
    assert parameters_by_part({"other": other, "one": one}) == {"total": 24, "other": 20, "one": 4}
    assert parameters_by_part({"one": one, "again": one}) == {"total": 20, "one": 20, "again": 0}


def test_by_part_without_parts() -> None:
    assert parameters_by_part({}) == {"total": 0}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"total": 8833, "token_embedding": 2080, "position": 384, "attention": 4224, "head": 2145}),
        (
            {"tie_embeddings": True},
            {"total": 6753, "token_embedding": 2080, "position": 384, "attention": 4224, "head": 65},
        ),
        (
            {"positions": SinusoidalPositionalEmbedding(12, 32)},
            {"total": 8449, "token_embedding": 2080, "position": 0, "attention": 4224, "head": 2145},
        ),
        (
            {"positions": NoPositions()},
            {"total": 8449, "token_embedding": 2080, "position": 0, "attention": 4224, "head": 2145},
        ),
    ],
)
def test_the_default_model_by_part(options: dict[str, object], expected: dict[str, int]) -> None:
    model = TinyAttentionLM(*DEFAULT, **options)
    counts = parameters_by_part(model.parts())
    assert counts == expected
    assert next(iter(counts)) == "total"
    assert count_parameters(model) == expected["total"] == sum(counts.values()) - counts["total"]


@pytest.mark.parametrize(("d_model", "n_heads"), [(32, 1), (32, 8), (64, 4), (6, 3)])
def test_parts_grow_with_the_width_and_not_with_the_heads(d_model: int, n_heads: int) -> None:
    assert parameters_by_part(TinyAttentionLM(65, d_model, n_heads, 12).parts()) == {
        "total": 65 * d_model + 12 * d_model + 4 * d_model**2 + 4 * d_model + 65 * d_model + 65,
        "token_embedding": 65 * d_model,
        "position": 12 * d_model,
        "attention": 4 * d_model**2 + 4 * d_model,
        "head": 65 * d_model + 65,
    }


def test_the_parts_hold_every_parameter_of_the_model() -> None:
    model = TinyAttentionLM(*DEFAULT)
    held = {id(p) for part in model.parts().values() for p in part.parameters()}
    assert held == {id(p) for p in model.parameters()}


def test_counting_changes_nothing() -> None:
    model = TinyAttentionLM(*DEFAULT)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parameters_by_part(model.parts())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
