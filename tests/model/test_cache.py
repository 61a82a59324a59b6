"""Reading with a cache: equal to reading everything again, at a flat cost per token."""

import pytest
import torch
from torch import Tensor

from poslab.build import build_model, build_task
from poslab.model import LanguageModel, MultiHeadSelfAttention
from poslab.model.cache import LayerCache
from support.every_model import every_model, every_scheme, job_of, make


def read_in_parts(model: LanguageModel, ids: Tensor, parts: list[int]) -> Tensor:
    """The logits of ``ids``, read with a cache in runs of these lengths."""
    cache = model.new_cache()
    return torch.cat([model.read(part, cache) for part in ids.split(parts, dim=1)], dim=1)


@every_scheme
@every_model
@pytest.mark.parametrize("parts", [[1] * 12, [5, 1, 3, 2, 1]], ids=str)
def test_reading_with_a_cache_gives_the_logits_of_reading_at_once(
    scheme: str, architecture: str, parts: list[int]
) -> None:
    model = make(scheme, architecture)
    ids = torch.randint(model.vocab_size, (3, 12))
    with torch.no_grad():
        expected, _ = model(ids, return_weights=True)
    assert float(expected.std()) > 0.1
    torch.testing.assert_close(read_in_parts(model, ids, parts), expected, rtol=1e-4, atol=2e-5)


@every_scheme
@every_model
@pytest.mark.parametrize("autocast", [False, True], ids=["cast", "autocast"])
def test_in_bf16_too(scheme: str, architecture: str, autocast: bool) -> None:
    model = make(scheme, architecture)
    ids = torch.randint(model.vocab_size, (2, 24))
    if not autocast:
        model = model.to(torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        expected, found = model(ids), read_in_parts(model, ids, [9, 4, *[1] * 11])
    assert found.dtype == torch.bfloat16
    scale = float(expected.float().std())
    torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=0.06 * scale)


@every_scheme
def test_a_cache_that_forgets_positions_would_be_noticed(scheme: str) -> None:
    """The test above can fail: a scheme that takes every new token for the first one gives other logits."""
    model = make(scheme, "attention")
    ids = torch.randint(model.vocab_size, (2, 24))
    expected = read_in_parts(model, ids, [1] * 24)
    whole, positions = model.positions, model.positions.layer(0)
    positions.rotate_keys = lambda x, start=0, rotate=positions.rotate_keys: rotate(x, 0)
    positions.rotate = lambda x, start=0, rotate=positions.rotate: rotate(x, 0)
    whole.embed = lambda seq_len, start=0, embed=whole.embed: embed(seq_len, 0)
    positions.bias = lambda n_queries, n_keys: None
    positions.content_bias = lambda q, k, features, behind: None
    same = torch.allclose(read_in_parts(model, ids, [1] * 24), expected, atol=1e-3)
    assert same == (scheme == "none")


@every_scheme
@pytest.mark.parametrize("n_heads", [1, 6])
def test_the_bias_of_the_last_queries_is_the_end_of_the_whole_bias(scheme: str, n_heads: int) -> None:
    job = job_of(f"pos={scheme}", "model.d_model=24", f"model.n_heads={n_heads}")
    positions = build_model(job, build_task(job)).positions
    for n_keys in (1, 2, 17, 150):
        whole = positions.bias(n_keys, n_keys)
        for n_queries in {1, min(3, n_keys)}:
            end = positions.bias(n_queries, n_keys)
            assert (end is None) == (whole is None)
            if whole is not None:
                # Keys after a query are left to the mask.
                seen = torch.ones(n_keys, n_keys, dtype=torch.bool).tril()[-n_queries:]
                torch.testing.assert_close(end[:, seen], whole[:, -n_queries:][:, seen])


def test_a_cache_carries_no_gradient() -> None:
    attention, cache = MultiHeadSelfAttention(8, 2, 3), LayerCache(3)
    for _ in range(3):
        attention(torch.randn(1, 1, 8), cache=cache).sum().backward()
    keys, values, features = cache.append(torch.ones(1, 2, 0, 4), torch.ones(1, 2, 0, 4))
    assert features is None
    assert keys.shape[2] == 3
    assert not keys.requires_grad
    assert not values.requires_grad


def test_weights_with_a_cache_are_the_last_rows() -> None:
    model = make("rope", "attention")
    attention = model.attention_layers()[0]
    x = torch.randn(2, 10, attention.d_model)
    with torch.no_grad():
        _, whole = attention(x, return_weights=True, positions=model.positions)
        cache = LayerCache(24)
        attention(x[:, :6], positions=model.positions, cache=cache)
        _, last = attention(x[:, 6:], return_weights=True, positions=model.positions, cache=cache)
    assert last.shape == (2, 4, 4, 10)
    torch.testing.assert_close(last, whole[:, :, 6:])


def test_keys_and_values_are_written_once_and_never_moved() -> None:
    cache = LayerCache(8)
    first, *_ = cache.append(torch.ones(2, 3, 1, 4), torch.ones(2, 3, 1, 4))
    for token in range(2, 9):
        keys, values, _ = cache.append(torch.full((2, 3, 1, 4), 1.0 * token), torch.full((2, 3, 1, 4), -1.0 * token))
        assert keys.data_ptr() == first.data_ptr()
    assert keys[0, 0, :, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert values[1, 2, 1:, 3].tolist() == [-2, -3, -4, -5, -6, -7, -8]


@every_scheme
@every_model
def test_past_the_context_is_refused_with_both_numbers(scheme: str, architecture: str) -> None:
    model = make(scheme, architecture, context=12)
    cache = model.new_cache()
    model.read(torch.zeros(1, 10, dtype=torch.int64), cache)
    with pytest.raises(ValueError, match=r"\b13\b.*\b12\b"):
        model.read(torch.zeros(1, 3, dtype=torch.int64), cache)
    # What was refused was not read.
    assert model.read(torch.zeros(1, 2, dtype=torch.int64), cache).shape == (1, 2, 13)


def test_a_layer_and_its_cache_refuse_it_too() -> None:
    attention, cache = MultiHeadSelfAttention(8, 2, 3), LayerCache(9)
    with torch.no_grad():
        attention(torch.randn(1, 3, 8), cache=cache)
        with pytest.raises(ValueError, match=r"\b4\b.*\b3\b"):
            attention(torch.randn(1, 1, 8), cache=cache)
    with pytest.raises(ValueError, match=r"\b4\b.*\b3\b"):
        LayerCache(3).append(torch.ones(1, 1, 4, 2), torch.ones(1, 1, 4, 2))


def test_a_cache_is_for_one_batch_and_for_evaluation() -> None:
    model = make("learned", "attention")
    cache = model.new_cache()
    model.read(torch.zeros(2, 3, dtype=torch.int64), cache)
    with pytest.raises(ValueError, match=r"batch of 2.*3 rows"):
        model.read(torch.zeros(3, 1, dtype=torch.int64), cache)
    model.train()
    with pytest.raises(ValueError, match=r"model.eval\(\)"):
        model.read(torch.zeros(2, 1, dtype=torch.int64), cache)


@every_scheme
def test_what_is_made_for_a_token_is_linear_too(scheme: str) -> None:
    """Numbers in the largest tensor that any operation returns: one row of scores, never a square of them."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, Tensor) and not result._is_view():
                self.seen = max(self.seen, result.numel())
            return result

    context = 400
    model = make(scheme, "attention", context)
    cache = model.new_cache()
    model.read(torch.zeros(1, context - 1, dtype=torch.int64), cache)
    with Largest() as largest:
        model.read(torch.zeros(1, 1, dtype=torch.int64), cache)
    assert largest.seen <= context * 64, "64 numbers a key: the waves of sandwich, the keys of pope"
