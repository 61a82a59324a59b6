"""Reading with a cache and writing token by token: equal to reading everything again, at a flat cost per token."""

import functools
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from poslab.build import build_model, build_task
from poslab.config.schema import TrainConfig, checked
from poslab.evaluation.generation import generate
from poslab.model import LanguageModel, MultiHeadSelfAttention
from poslab.model.cache import LayerCache
from support.configs import compose
from support.paths import CONF

SCHEMES = sorted(path.stem for path in (CONF / "pos").glob("*.yaml"))
ARCHITECTURES = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)
every_model = pytest.mark.parametrize("architecture", ARCHITECTURES)


@functools.cache
def job_of(*overrides: str) -> TrainConfig:
    return checked(compose(*overrides))


def make(scheme: str, architecture: str, context: int = 24) -> LanguageModel:
    """A model whose logits lie far apart, so that no rounding decides between two tokens."""
    job = job_of(f"pos={scheme}", f"model={architecture}", f"model.max_context_length={context}", "task.n_symbols=12")
    model = build_model(job, build_task(job)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(std=0.4 if "position" in name or "embedding" in name else 0.25)
    return model


def read_in_parts(model: LanguageModel, ids: Tensor, parts: list[int]) -> Tensor:
    """The logits of ``ids``, read with a cache in runs of these lengths."""
    cache = model.new_cache()
    return torch.cat([model.read(part, cache) for part in ids.split(parts, dim=1)], dim=1)


# The cache.


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
    positions = model.positions
    positions.rotate = lambda x, start=0, rotate=positions.rotate: rotate(x, 0)
    positions.embed = lambda seq_len, start=0, embed=positions.embed: embed(seq_len, 0)
    positions.bias = lambda n_queries, n_keys: None
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
    keys, values = cache.append(torch.ones(1, 2, 0, 4), torch.ones(1, 2, 0, 4))
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
    first, _ = cache.append(torch.ones(2, 3, 1, 4), torch.ones(2, 3, 1, 4))
    for token in range(2, 9):
        keys, values = cache.append(torch.full((2, 3, 1, 4), 1.0 * token), torch.full((2, 3, 1, 4), -1.0 * token))
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


# Writing.


def by_hand(model: LanguageModel, prompt: Tensor, n: int) -> list[list[int]]:
    """The likeliest token, again and again, from the whole sequence."""
    rows = prompt.tolist()
    for _ in range(n):
        with torch.no_grad():
            logits, _ = model(torch.tensor(rows), return_weights=True)
        for row, row_logits in zip(rows, logits.tolist(), strict=True):
            row.append(max(range(model.vocab_size), key=row_logits[-1].__getitem__))
    return [row[prompt.shape[1] :] for row in rows]


@every_scheme
@every_model
@pytest.mark.parametrize("use_cache", [True, False])
def test_the_likeliest_tokens_with_and_without_a_cache(scheme: str, architecture: str, use_cache: bool) -> None:
    model = make(scheme, architecture)
    prompt = torch.randint(model.vocab_size, (3, 5))
    found = torch.stack(list(generate(model, prompt, 20, use_cache=use_cache)), dim=1)
    assert found.tolist() == by_hand(model, prompt, 20)
    assert found.requires_grad is False


def test_tokens_come_one_by_one_and_leave_the_caller_s_gradients_on() -> None:
    model = make("learned", "attention")
    asked = []
    model.head.register_forward_hook(lambda *_: asked.append(1))
    for use_cache in (True, False):
        asked.clear()
        tokens = generate(model, torch.zeros(1, 5, dtype=torch.int64), 20, use_cache=use_cache)
        assert asked == []
        for count in range(1, 4):
            next(tokens)
            assert len(asked) == count
            assert torch.is_grad_enabled()


def test_draws_follow_their_seed_and_the_temperature() -> None:
    model = make("learned", "attention")
    prompt = torch.zeros(64, 3, dtype=torch.int64)
    before = torch.get_rng_state()

    def drawn(**options: float) -> list[list[int]]:
        return torch.stack(list(generate(model, prompt, 4, **options))).tolist()

    assert drawn(temperature=1.0, seed=1) == drawn(temperature=1.0, seed=1) != drawn(temperature=1.0, seed=2)
    assert drawn(temperature=1.0, seed=1, use_cache=False) == drawn(temperature=1.0, seed=1)
    assert drawn(temperature=1e-3) == drawn(temperature=3.0, top_k=1) == drawn()
    with torch.no_grad():
        logits = model(prompt[:1])[0, -1]
    (first, *_) = drawn(temperature=50.0, top_k=3)
    assert set(first) == set(logits.topk(3).indices.tolist())
    many = torch.stack(list(generate(model, prompt[:1].expand(20000, 3), 1, temperature=0.7)))[0]
    shares = torch.bincount(many, minlength=model.vocab_size) / 20000
    torch.testing.assert_close(shares, (logits / 0.7).softmax(-1), rtol=0, atol=0.02)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(
    ("prompt", "new", "options", "named"),
    [
        (20, 6, {}, r"\b20\b.*\b6\b.*\b25\b.*\b24\b"),
        (25, 1, {}, r"\b25\b.*\b24\b"),
        (0, 6, {}, r"prompt of 0 tokens"),
        (3, 0, {}, r"max_new_tokens 0"),
        (3, 1, {"temperature": -1.0}, r"temperature -1.0"),
        (3, 1, {"temperature": 1e-40}, r"temperature 1e-40"),
        (3, 1, {"top_k": 3}, r"top_k 3 .* temperature above 0"),
        (3, 1, {"temperature": 1.0, "top_k": 0}, r"top_k 0"),
    ],
)
def test_what_cannot_be_written_is_refused_at_the_call(prompt: int, new: int, options: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        generate(make("rope", "attention"), torch.zeros(1, prompt, dtype=torch.int64), new, **options)


def test_the_context_is_used_to_its_end() -> None:
    """The last token is written from a full context, and not read again."""
    assert len(list(generate(make("learned", "transformer"), torch.zeros(1, 20, dtype=torch.int64), 5))) == 5


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme != "learned"])
def test_a_longer_copy_writes_on(scheme: str) -> None:
    model = make(scheme, "transformer", context=12).extended(40)
    prompt = torch.randint(model.vocab_size, (2, 5))
    tokens = torch.stack(list(generate(model, prompt, 36)), dim=1)
    assert tokens.tolist() == torch.stack(list(generate(model, prompt, 36, use_cache=False)), dim=1).tolist()


# What a token costs.


def operations(tokens: Iterator[Tensor]) -> int:
    """Floating-point operations in matrix products and attention that the next token takes."""
    with FlopCounterMode(display=False) as counter:
        next(tokens)
    return int(counter.get_total_flops())


@every_scheme
def test_a_token_costs_one_query_over_all_keys(scheme: str) -> None:
    model = make(scheme, "transformer", context=30).requires_grad_(False)
    start = torch.zeros(1, 1, dtype=torch.int64)
    tokens = generate(model, start, 30)
    counts = [operations(tokens) for _ in range(30)]
    growth = {after - before for before, after in pairwise(counts)}
    assert len(growth) == 1, "linear in the keys"
    # In each layer a key costs two products with D numbers, and in fire a network from 1 to 32 to H numbers.
    layers, d_model, n_heads = 2, 64, 4
    assert growth.pop() <= layers * 2 * (2 * d_model + 32 * (1 + n_heads))
    without = generate(model, start, 30, use_cache=False)
    for _ in range(29):
        next(without)
    assert operations(without) > 20 * counts[-1], "and without a cache, 30 queries"


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
    assert largest.seen <= context * 32, "fire's hidden layer, 32 numbers a key"
