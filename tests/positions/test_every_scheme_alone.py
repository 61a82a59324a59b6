"""What a key/value cache needs of every position scheme in conf/pos."""

import pytest
import torch

from poslab import MultiHeadSelfAttention
from support.every_scheme import D, H, every_scheme, model_of


@every_scheme
@pytest.mark.parametrize("n_keys", [1, 2, 9, 100])
def test_the_bias_of_the_last_queries_is_the_end_of_the_whole(name: str, n_keys: int) -> None:
    scheme = model_of(name).positions
    whole = scheme.bias(n_keys, n_keys)
    for n_queries in {1, (n_keys + 1) // 2, n_keys}:
        bias = scheme.bias(n_queries, n_keys)
        if whole is None:
            assert bias is None
        else:
            assert bias.shape == (H, n_queries, n_keys)
            torch.testing.assert_close(bias.tril(n_keys - n_queries), whole[:, -n_queries:].tril(n_keys - n_queries))


@every_scheme
def test_the_bias_of_a_sequence_is_the_beginning_of_a_longer_one_s(name: str) -> None:
    scheme = model_of(name).positions
    if scheme.bias(1, 1) is not None:
        torch.testing.assert_close(scheme.bias(70, 70).tril(), scheme.bias(100, 100)[:, :70, :70].tril())


@every_scheme
@pytest.mark.parametrize(("start", "length"), [(0, 12), (0, 1), (3, 4), (11, 1)])
def test_positions_that_start_later_are_slices_of_the_whole(name: str, start: int, length: int) -> None:
    scheme = model_of(name).positions
    x = torch.randn(2, H, 12, D // H)
    part = slice(start, start + length)
    torch.testing.assert_close(scheme.rotate(x[:, :, part], start), scheme.rotate(x)[:, :, part])
    rows, whole = scheme.embed(length, start), scheme.embed(12)
    assert (rows is None) == (whole is None)
    if rows is not None:
        assert torch.equal(rows, whole[part])


@every_scheme
def test_a_cast_scheme_places_as_before(name: str) -> None:
    """bf16 has three digits: numbers that are computed with may lose no more than that."""
    scheme = model_of(name).positions
    x = torch.randn(1, H, 300, D // H).bfloat16()
    bias, rows, turned = scheme.bias(300, 300), scheme.embed(12), scheme.rotate(x.float())
    scheme.to(torch.bfloat16)
    torch.testing.assert_close(scheme.rotate(x).float(), turned, rtol=0.01, atol=0.02)
    if bias is not None:
        torch.testing.assert_close(scheme.bias(300, 300).float().tril(), bias.tril(), rtol=0.02, atol=0.02)
    if rows is not None:
        torch.testing.assert_close(scheme.embed(12).float(), rows, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("name", ["none", "rope", "alibi", "hard_alibi", "t5"])
def test_scores_of_a_relative_scheme_depend_on_the_offset_only(name: str) -> None:
    """The same vector at every position: a score against the query's own is then a matter of distance alone."""
    scheme, attention = model_of(name).positions, MultiHeadSelfAttention(D, H, 40)
    _, weights = attention(2 * torch.randn(1, 1, D).expand(1, 40, D), True, scheme)
    scores = weights[0].log() - weights[0].log().diagonal(dim1=-2, dim2=-1)[..., None]
    for offset in range(40):
        found = scores.diagonal(-offset, dim1=-2, dim2=-1)
        torch.testing.assert_close(found, found[:, :1].expand_as(found), rtol=1e-4, atol=1e-4)
