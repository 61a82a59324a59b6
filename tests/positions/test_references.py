"""Position schemes against other people's code: x-transformers and rotary-embedding-torch."""

import math
import warnings

import pytest
import torch
from torch import Tensor

from poslab import SinusoidalPositionalEmbedding
from poslab.positions import ALiBi, CoPE, ForgettingAttention, MLPBias, PolarPositions, RotaryPositions, T5Bias, XPos
from poslab.positions.base import distances

with warnings.catch_warnings():
    # Whatever they say when they are imported is not about this project.
    warnings.simplefilter("ignore")
    from rotary_embedding_torch import RotaryEmbedding
    from x_transformers import x_transformers as reference

HEADS = [1, 2, 3, 4, 6, 8, 12, 16]
LENGTHS = [1, 2, 7, 41, 150]


def causal(bias: Tensor) -> Tensor:
    """The entries that attention uses: at and below the diagonal; the libraries fill the future differently."""
    return bias.tril()


# ALiBi.


@pytest.mark.parametrize("n_heads", HEADS)
@pytest.mark.parametrize("length", LENGTHS)
def test_alibi_equals_x_transformers(n_heads: int, length: int) -> None:
    """It takes the absolute distance, so that the future is biased too; behind the mask the two are one."""
    expected = reference.AlibiPositionalBias(heads=n_heads)(length, length)
    torch.testing.assert_close(causal(ALiBi(n_heads).bias(length, length)), causal(expected))


# T5.


@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (32, 300), (16, 100), (64, 777), (8, 20), (32, 17)])
@pytest.mark.parametrize("length", [1, 7, 41, 400])
def test_t5_equals_x_transformers(n_buckets: int, max_distance: int, length: int) -> None:
    """With scale 1: it multiplies the bias by a scale of its own, sqrt(d_head) by default; T5 has none."""
    theirs = reference.RelativePositionBias(
        scale=1, causal=True, num_buckets=n_buckets, max_distance=max_distance, heads=3
    )
    ours = T5Bias(3, n_buckets, max_distance)
    with torch.no_grad():
        ours.weight.copy_(theirs.relative_attention_bias.weight)
        assert torch.equal(causal(ours.bias(length, length)), causal(theirs(length, length)))


@pytest.mark.parametrize("n_heads", HEADS)
def test_t5_of_the_last_queries_equals_x_transformers(n_heads: int) -> None:
    theirs = reference.RelativePositionBias(scale=1, causal=True, heads=n_heads)
    ours = T5Bias(n_heads)
    with torch.no_grad():
        ours.weight.copy_(theirs.relative_attention_bias.weight)
        assert torch.equal(ours.bias(1, 200), theirs(1, 200))


def test_t5_is_not_the_two_sided_variant() -> None:
    """For encoders the same code halves the buckets: from distance 9 on it differs, and short tests do not show it."""
    theirs = reference.RelativePositionBias._relative_position_bucket(-torch.arange(200), causal=False)
    ours = T5Bias(1)
    with torch.no_grad():
        ours.weight.copy_(torch.arange(32.0)[:, None])
    buckets = ours.bias(1, 200)[0, 0].flip(0).long()
    assert torch.equal(buckets[:9], theirs[:9])
    assert not bool((buckets[9:] == theirs[9:]).any())


# Rotary.


@pytest.mark.parametrize("d_head", [4, 6, 16, 64])
@pytest.mark.parametrize("base", [10000.0, 100.0, 500_000.0])
@pytest.mark.parametrize(("length", "start"), [(1, 0), (7, 0), (41, 0), (150, 0), (1, 57), (9, 33)])
def test_rope_equals_rotary_embedding_torch(d_head: int, base: float, length: int, start: int) -> None:
    """Interleaved pairs, as in the paper. (It cannot do a single pair: it divides by d_head - 2.)"""
    x = torch.randn(2, 3, length, d_head)
    expected = RotaryEmbedding(dim=d_head, theta=base).rotate_queries_or_keys(x, offset=start)
    torch.testing.assert_close(RotaryPositions(d_head, base).rotate(x, start), expected.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("d_head", [4, 6, 16])
@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_rope_equals_x_transformers(d_head: int, base: float) -> None:
    x = torch.randn(2, 3, 41, d_head)
    angles, scale = reference.RotaryEmbedding(d_head, base=base).forward_from_seq_len(41)
    expected = reference.apply_rotary_pos_emb(x, angles, scale)
    torch.testing.assert_close(RotaryPositions(d_head, base).rotate(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("d_head", [2, 6, 16])
@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_rope_is_the_half_split_layout_of_gpt_neox_and_llama_with_columns_permuted(d_head: int, base: float) -> None:
    """There column k pairs with column k + d_head/2, by ``rotate_half``: even columns first, then the odd ones."""
    x, half = torch.randn(2, 3, 41, d_head), d_head // 2
    permutation = torch.cat((torch.arange(0, d_head, 2), torch.arange(1, d_head, 2)))
    y = x[..., permutation]
    angles = torch.outer(torch.arange(41.0), 1 / base ** (torch.arange(0, d_head, 2).float() / d_head)).repeat(1, 2)
    expected = y * angles.cos() + torch.cat((-y[..., half:], y[..., :half]), dim=-1) * angles.sin()
    torch.testing.assert_close(RotaryPositions(d_head, base).rotate(x)[..., permutation], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("n_pairs", [1, 4, 5])
@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_rope_is_a_product_of_complex_numbers(n_pairs: int, base: float) -> None:
    """Su et al. 2021, section 3.2.1, in double precision."""
    x = torch.randn(2, 3, 300, 2 * n_pairs)
    positions, exponents = torch.arange(300, dtype=torch.float64), torch.arange(n_pairs, dtype=torch.float64) / n_pairs
    angles = positions[:, None] / base**exponents
    pairs = torch.view_as_complex(x.double().unflatten(-1, (n_pairs, 2)))
    expected = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2).float()
    torch.testing.assert_close(RotaryPositions(2 * n_pairs, base).rotate(x), expected, rtol=0, atol=2e-4)


# Sinusoidal.


@pytest.mark.parametrize("d_model", [2, 6, 32])
@pytest.mark.parametrize("base", [10000, 100])
@pytest.mark.parametrize("length", LENGTHS)
def test_sinusoidal_equals_x_transformers(d_model: int, base: int, length: int) -> None:
    """It puts all sines before all cosines and multiplies by a learned scale, first 1 / sqrt(D); the paper neither."""
    theirs = reference.ScaledSinusoidalEmbedding(d_model, theta=base)
    rows = theirs(torch.zeros(1, length, d_model)).detach() * math.sqrt(d_model)
    interleaved = rows.unflatten(-1, (2, d_model // 2)).transpose(-1, -2).flatten(-2)
    ours = SinusoidalPositionalEmbedding(length, d_model, float(base)).pe
    torch.testing.assert_close(ours, interleaved, rtol=0, atol=2e-5)


# xPos and PoPE.


@pytest.mark.parametrize(("length", "scale_base"), [(12, 512), (150, 512), (150, 64)])
def test_xpos_gives_the_scores_of_rotary_embedding_torch(length: int, scale_base: int) -> None:
    """It counts the scale from the middle of the sequence, which changes no score."""
    q, k = torch.randn(2, 3, length, 16), torch.randn(2, 3, length, 16)
    theirs = RotaryEmbedding(dim=16, use_xpos=True, xpos_scale_base=scale_base)
    q_theirs, k_theirs = theirs.rotate_queries_and_keys(q, k)
    ours = XPos(16, scale_base=float(scale_base))
    found = ours.rotate(q) @ ours.rotate_keys(k).transpose(-1, -2)
    expected = (q_theirs @ k_theirs.transpose(-1, -2)).detach()
    torch.testing.assert_close(causal(found), causal(expected), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("start", [0, 7])
def test_pope_equals_x_transformers(start: int) -> None:
    theirs = reference.PolarEmbedding(6, 3)
    ours = PolarPositions(3, 6)
    with torch.no_grad():
        # Outside its range too: both clamp it.
        theirs.learned_bias.uniform_(-7.0, 1.0)
        ours.delta.copy_(theirs.learned_bias)
    x = torch.randn(2, 3, 20, 6)
    angles, delta = theirs(torch.arange(start, start + 20))
    torch.testing.assert_close(ours.rotate(x, start), reference.apply_polar_pos_emb(x, angles))
    torch.testing.assert_close(ours.rotate_keys(x, start), reference.apply_polar_pos_emb(x, angles + delta))


# A network of the distance.


@pytest.mark.parametrize("log_distance", [False, True])
@pytest.mark.parametrize("depth", [1, 3])
def test_mlp_bias_equals_x_transformers(depth: int, log_distance: bool) -> None:
    theirs = reference.DynamicPositionBias(8, heads=3, depth=depth, log_distance=log_distance)
    ours = MLPBias(3, 8, depth, log_distance)
    with torch.no_grad():
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.copy_(other)
    torch.testing.assert_close(causal(ours.bias(40, 40)), causal(theirs(40, 40)))


# Schemes that depend on the tokens.


@pytest.mark.parametrize("n_positions", [3, 64])
def test_cope_equals_x_transformers(n_positions: int) -> None:
    """It adds the product with the position without dividing it by sqrt(d_head), which the authors do."""
    theirs, ours = reference.CoPE(8, 2, n_positions), CoPE(1, 8, n_positions).layer(0)
    with torch.no_grad():
        theirs.pos_emb.normal_()
        ours.weight.copy_(theirs.pos_emb)
    q, k = torch.randn(2, 2, 12, 8), torch.randn(2, 2, 12, 8)
    later = torch.ones(12, 12).triu(1).bool()
    scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(later, -torch.inf)
    expected = theirs(q, scores) / 8**0.5
    torch.testing.assert_close(causal(ours.content_bias(q, k, None, distances(12, 12, q.device))), causal(expected))


def test_forgetting_equals_x_transformers() -> None:
    theirs, ours = reference.DataDependentAlibi(12, 3), ForgettingAttention(1, 12, 3, bias_init=5.0).layer(0)
    linear = theirs.to_forget_gates[0]
    with torch.no_grad():
        assert torch.equal(linear.bias, ours.gate.bias)
        ours.gate.load_state_dict(linear.state_dict())
    x, q = torch.randn(2, 9, 12), torch.randn(2, 3, 9, 4)
    torch.testing.assert_close(
        causal(ours.content_bias(q, q, ours.features(x), distances(9, 9, q.device))), causal(theirs(x))
    )
