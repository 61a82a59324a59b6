"""Writing token by token: the likeliest tokens and drawn ones, with and without a cache."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from poslab.evaluation.generation import generate
from poslab.model import LanguageModel
from support.every_model import SCHEMES, every_model, every_scheme, make


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
    # In each layer a key costs two products with D numbers, and what the scheme computes for a distance: in fire a
    # network from 1 to 32 to H numbers, in mlp_bias one from 1 to 32 to 32 to H, in transformer_xl a D x D matrix.
    layers, d_model, n_heads = 2, 64, 4
    of_distance = {"mlp_bias": 32 * (1 + 32 + n_heads), "transformer_xl": d_model**2}.get(scheme, 0)
    assert growth.pop() <= layers * 2 * (2 * d_model + (of_distance or 32 * (1 + n_heads)))
    without = generate(model, start, 30, use_cache=False)
    for _ in range(29):
        next(without)
    # Distances are computed once for all queries.
    once = layers * 2 * of_distance * 30
    assert operations(without) - once > 20 * (counts[-1] - once), "and without a cache, 30 queries"
