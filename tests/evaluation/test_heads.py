"""What a head does, by its weights: held against patterns built by hand and a slow loop."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from poslab.diagnostics.head_roles import strongest_role
from poslab.evaluation.heads import ROLES, head_roles, mean_roles, role_sums
from poslab.model.attention import QUERIES_AT_ONCE
from poslab.tasks.copy import CopyTask
from poslab.tasks.repeat import RepeatTask
from support.slow_roles import slow

N = 6


def one_hot(place: Callable[[int], int], n: int = N) -> torch.Tensor:
    """Weights (1, 1, T, T) with all of row t on ``place(t)``."""
    weights = torch.zeros(1, 1, n, n)
    for t in range(n):
        weights[0, 0, t, place(t)] = 1.0
    return weights


def copy_cells(n: int = N) -> torch.Tensor:
    """The answer cells (1, T, T) of a copy whose separator stands in the middle."""
    task = CopyTask(64, n // 2)
    tokens = task.sample(np.random.default_rng(0), 1).tokens[0]
    return torch.from_numpy(task.answer_cells(tokens))[None]


def roles_of(weights: torch.Tensor, cells: torch.Tensor) -> dict[str, float]:
    return {role: float(value[0]) for role, value in head_roles(weights, cells).items()}


# By hand, T = 6, SEP at 3: answers of rows 3, 4, 5 stand at 0, 1, 2. Row 0 can only look at token 0.
PATTERNS: dict[str, tuple[torch.Tensor, dict[str, float]]] = {
    "previous_token": (
        one_hot(lambda t: max(t - 1, 0)),
        {"previous_token": 1, "first_token": 2 / 6, "self": 1 / 6, "uniform": 0, "copy": 0},
    ),
    "first_token": (
        one_hot(lambda t: 0),
        {"previous_token": 1 / 5, "first_token": 1, "self": 1 / 6, "uniform": 0, "copy": 1 / 3},
    ),
    "self": (
        one_hot(lambda t: t),
        {"previous_token": 0, "first_token": 1 / 6, "self": 1, "uniform": 0, "copy": 0},
    ),
    "copy": (
        one_hot(lambda t: t - 3 if t >= 3 else t),
        {"previous_token": 0, "first_token": 2 / 6, "self": 3 / 6, "uniform": 0, "copy": 1},
    ),
    "uniform": (
        (torch.tril(torch.ones(N, N)) / torch.arange(1, N + 1)[:, None])[None, None],
        {
            "previous_token": sum(1 / (t + 1) for t in range(1, 6)) / 5,
            "first_token": sum(1 / (t + 1) for t in range(6)) / 6,
            "self": sum(1 / (t + 1) for t in range(6)) / 6,
            "uniform": 1,
            "copy": (1 / 4 + 1 / 5 + 1 / 6) / 3,
        },
    ),
}


@pytest.mark.parametrize("name", ROLES)
def test_a_pure_pattern_has_its_role_and_the_others_what_they_must_be(name: str) -> None:
    weights, wanted = PATTERNS[name]
    found = roles_of(weights, copy_cells())
    assert found == pytest.approx(wanted, abs=1e-7)
    assert found[name] == pytest.approx(1.0, abs=1e-7)
    assert strongest_role(found)[0] == name


def causal(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    scores = torch.from_numpy(rng.normal(scale=3, size=(*shape, shape[-1])))
    return scores.masked_fill(~torch.ones(shape[-1], shape[-1]).tril().bool(), -torch.inf).softmax(-1).float()


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**31))
def test_roles_are_those_of_a_slow_loop(batch: int, n_heads: int, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = causal(rng, batch, n_heads, n)
    cells = torch.from_numpy(np.tril(rng.random((batch, n, n)) < rng.choice([0.0, 0.2, 0.9])))
    found = head_roles(weights, cells)
    assert list(found) == list(ROLES)
    for head, wanted in enumerate(slow(weights.numpy(), cells.numpy())):
        mine = {role: float(value[head]) for role, value in found.items()}
        assert mine == pytest.approx(wanted, abs=1e-5)
        assert all(0 <= value <= 1 for value in mine.values())


def test_a_context_longer_than_a_block_gives_the_same_roles() -> None:
    n = QUERIES_AT_ONCE + 7
    rng = np.random.default_rng(1)
    weights = causal(rng, 1, 2, n)
    cells = torch.from_numpy(np.tril(rng.random((1, n, n)) < 0.01))
    for head, wanted in enumerate(slow(weights.numpy(), cells.numpy())):
        assert {role: float(value[head]) for role, value in head_roles(weights, cells).items()} == pytest.approx(wanted)


def test_batches_add_up_to_the_whole_also_with_different_numbers_of_answers() -> None:
    rng = np.random.default_rng(2)
    weights = causal(rng, 5, 3, 8)
    cells = torch.from_numpy(np.tril(rng.random((5, 8, 8)) < 0.3))
    cells[4] = False
    parts = [role_sums(w, c) for w, c in zip(weights.split(2), cells.split(2), strict=True)]
    whole = head_roles(weights, cells)
    for role, values in mean_roles(parts).items():
        assert torch.allclose(values, whole[role], atol=1e-12)


def test_one_token_plays_no_role_that_needs_two() -> None:
    found = roles_of(torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, dtype=torch.bool))
    assert found == {"previous_token": 0, "first_token": 1, "self": 1, "uniform": 0, "copy": 0}


def test_where_all_tokens_are_equal_every_head_copies() -> None:
    cells = torch.from_numpy(RepeatTask(64, 7).answer_cells(np.full(7, 3)))[None]
    found = head_roles(causal(np.random.default_rng(3), 1, 4, 7), cells)
    assert found["copy"].numpy() == pytest.approx([1, 1, 1, 1], abs=1e-6)


def test_a_prompt_of_repeat_holds_its_answer_only_where_the_token_is_the_same() -> None:
    assert RepeatTask(64, 4).answer_cells(np.array([1, 2, 1, 1])).astype(int).tolist() == [
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [1, 0, 1, 0],
        [1, 0, 1, 1],
    ]
