"""Schemes whose part of a score depends on the tokens, each against its formula in plain loops."""

import math

import pytest
import torch
from torch import Tensor, nn

from poslab import MultiHeadSelfAttention, PositionScheme
from poslab.positions import (
    Cable,
    CoPE,
    ForgettingAttention,
    RopeNoPE,
    RotaryPositions,
    ShawRelativePositions,
    TransformerXLPositions,
)
from poslab.positions.base import distances
from poslab.positions.sinusoidal import sinusoidal_table

B, H, T, D_HEAD = 2, 3, 9, 4
D = H * D_HEAD


def moved(scheme: PositionScheme) -> PositionScheme:
    """The scheme with every parameter far from its start."""
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter.normal_()
    return scheme.layer(0)


def queries_and_keys() -> tuple[Tensor, Tensor]:
    return torch.randn(B, H, T, D_HEAD), torch.randn(B, H, T, D_HEAD)


@pytest.mark.parametrize("max_distance", [1, 4, 20])
def test_shaw_follows_the_formula(max_distance: int) -> None:
    scheme, (q, k) = moved(ShawRelativePositions(1, D_HEAD, max_distance)), queries_and_keys()
    bias = scheme.content_bias(q, k, None, distances(T, T, q.device))
    for i in range(T):
        for j in range(i + 1):
            expected = q[:, :, i] @ scheme.weight[min(i - j, max_distance)] / math.sqrt(D_HEAD)
            torch.testing.assert_close(bias[:, :, i, j], expected)


def test_transformer_xl_follows_the_formula() -> None:
    scheme, (q, k) = moved(TransformerXLPositions(1, D, H, T)), queries_and_keys()
    bias, rows = scheme.content_bias(q, k, None, distances(T, T, q.device)), sinusoidal_table(T, D)
    for head in range(H):
        for i in range(T):
            for j in range(i + 1):
                u, v = scheme.u[head, 0], scheme.v[head, 0]
                of_distance = scheme.weight[head] @ rows[i - j]
                # Terms (b), (c) and (d) of the paper's four; attention itself adds (a).
                expected = q[:, head, i] @ of_distance + k[:, head, j] @ u + v @ of_distance
                torch.testing.assert_close(bias[:, head, i, j], expected / math.sqrt(D_HEAD), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n_positions", [2, 3, 64])
def test_cope_counts_as_the_formula_does(n_positions: int) -> None:
    scheme, (q, k) = moved(CoPE(1, D_HEAD, n_positions)), queries_and_keys()
    bias = scheme.content_bias(q, k, None, distances(T, T, q.device)).detach()
    table = scheme.weight.detach()
    for i in range(T):
        for j in range(i + 1):
            for row in range(B):
                for head in range(H):
                    gates = [
                        1 / (1 + math.exp(-float(q[row, head, i] @ k[row, head, t]) / math.sqrt(D_HEAD)))
                        for t in range(j, i + 1)
                    ]
                    position = min(sum(gates), n_positions - 1)
                    low = math.floor(position)
                    high, share = min(low + 1, n_positions - 1), position - low
                    vector = (1 - share) * table[low] + share * table[high]
                    expected = float(q[row, head, i] @ vector) / math.sqrt(D_HEAD)
                    assert float(bias[row, head, i, j]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("kind", "sign"), [(ForgettingAttention, 1.0), (Cable, -1.0)])
def test_forgetting_adds_up_the_gates_between_key_and_query(kind: type[ForgettingAttention], sign: float) -> None:
    """CABLE is the same with the sign of the linear layer turned."""
    scheme, x = moved(kind(1, D, H)), torch.randn(B, T, D)
    features = scheme.features(x)
    bias = scheme.content_bias(*queries_and_keys(), features, distances(T, T, x.device))
    gates = torch.sigmoid(sign * scheme.gate(x))
    for head in range(H):
        for i in range(T):
            for j in range(i + 1):
                expected = gates[:, j + 1 : i + 1, head].log().sum(-1)
                torch.testing.assert_close(bias[:, head, i, j], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bias_init", [0.0, 5.0])
def test_forgetting_with_constant_gates_is_alibi(bias_init: float) -> None:
    scheme = ForgettingAttention(1, D, H, bias_init).layer(0)
    nn.init.zeros_(scheme.gate.weight)
    features, distance = scheme.features(torch.randn(B, T, D)), distances(T, T, torch.device("cpu"))
    bias = scheme.content_bias(*queries_and_keys(), features, distance)
    slope = math.log1p(math.exp(-bias_init))
    torch.testing.assert_close(bias, (-slope * distance).expand(B, H, T, T), rtol=1e-4, atol=1e-4)


def test_layers_have_parameters_of_their_own() -> None:
    for scheme in (ShawRelativePositions(3, 4), TransformerXLPositions(3, 8, 2, 9), CoPE(3, 4), Cable(3, 8, 2)):
        one, *others = [list(scheme.layer(index).parameters()) for index in range(3)]
        assert one
        assert all(a is not b for other in others for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("every", "without"), [(2, [1, 3, 5]), (3, [2, 5]), (4, [3])])
def test_rope_nope_leaves_every_nth_layer_without_positions(every: int, without: list[int]) -> None:
    scheme = RopeNoPE(6, 4, every=every)
    assert [i for i in range(6) if not isinstance(scheme.layer(i), RotaryPositions)] == without
    assert scheme.note == ""
    assert "is pos=rope" in RopeNoPE(every - 1, 4, every=every).note
    with pytest.raises(ValueError, match="every 1"):
        RopeNoPE(6, 4, every=1)


class ByContent(PositionScheme):
    """Adds numbers of its own to each score of each row."""

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.numbers = bias

    def content_bias(self, q: Tensor, k: Tensor, features: Tensor | None, behind: Tensor) -> Tensor:
        return self.numbers[..., : q.shape[-2], : k.shape[-2]]


@pytest.mark.parametrize("return_weights", [False, True])
def test_a_content_bias_acts_on_each_row_by_itself(return_weights: bool) -> None:
    attention, x = MultiHeadSelfAttention(8, 2, 70), torch.randn(3, 70, 8)
    bias = torch.randn(3, 2, 70, 70)
    with torch.no_grad():
        whole = attention(x, return_weights, ByContent(bias))
        rows = [attention(x[i : i + 1], return_weights, ByContent(bias[i : i + 1])) for i in range(3)]
    for part in range(2 if return_weights else 1):
        found = whole[part] if return_weights else whole
        torch.testing.assert_close(found, torch.cat([row[part] if return_weights else row for row in rows]))
