"""What a head does, by its weights, and what the loss costs without it: held against hand-built patterns and loops."""

import csv
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from poslab.config.schema import DataConfig
from poslab.data.module import SeedData
from poslab.diagnostics import Finding, Gallery, Picture, Scalars
from poslab.diagnostics.head_ablation import HeadAblation
from poslab.diagnostics.head_roles import MIXED, HeadRoles, draw_roles, strongest_role
from poslab.evaluation.heads import ROLES, head_ablation, head_roles, mean_roles, role_sums, without_heads
from poslab.evaluation.metrics import score
from poslab.model import LanguageModel, TinyAttentionLM, TransformerLM
from poslab.model.attention import QUERIES_AT_ONCE
from poslab.positions import ALiBi
from poslab.tasks import Task
from poslab.tasks.copy import CopyTask
from poslab.tasks.repeat import RepeatTask
from support.event_files import read, steps
from support.figures import assert_readable, texts
from support.runs import SMALL, train

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


def slow(weights: np.ndarray, cells: np.ndarray) -> list[dict[str, float]]:
    """The roles of every head, as one would write them down."""
    batch, n_heads, n, _ = weights.shape
    result = []
    for head in range(n_heads):
        lists: dict[str, list[float]] = {role: [] for role in ROLES}
        for b in range(batch):
            for t in range(n):
                row = [float(w) for w in weights[b, head, t]]
                lists["first_token"].append(row[0])
                lists["self"].append(row[t])
                if t > 0:
                    lists["previous_token"].append(row[t - 1])
                    lists["uniform"].append(-sum(w * math.log(w) for w in row if w > 0) / math.log(t + 1))
                if cells[b, t].any():
                    lists["copy"].append(sum(row[key] for key in range(n) if cells[b, t, key]))
        result.append({role: sum(found) / len(found) if found else 0.0 for role, found in lists.items()})
    return result


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


# Ablation


def models() -> Iterator[LanguageModel]:
    torch.manual_seed(3)
    yield TinyAttentionLM(65, 32, 4, 12, dropout=0.2)
    yield TinyAttentionLM(65, 12, 1, 12)
    yield TransformerLM(65, 16, 2, 3, 12, positions=ALiBi(2), dropout=0.2)


def some_data(task: Task | None = None, n: int = 24) -> SeedData:
    task = task or CopyTask(64, 6)
    return SeedData(task, DataConfig(batch_size=4, steps_per_epoch=1, val_examples=n, val_batch_size=16, num_workers=0),
                    seed=0, vocab_size=task.vocab_size)  # fmt: skip


def validation_loss(model: LanguageModel, data: SeedData) -> float:
    with torch.no_grad():
        found = [score(model(batch.tokens), batch.targets) for batch in data.validation.batches]
    return float(sum(one.loss_sum for one in found) / sum(one.tokens for one in found))


@pytest.mark.parametrize("model", models(), ids=["four-heads", "one-head", "three-layers"])
def test_ablation_is_the_loss_with_zeroed_columns_minus_the_whole(model: LanguageModel) -> None:
    """A head whose columns of ``out_proj`` are zero gives nothing: the same by the weights instead of the hook."""
    model.eval()
    data = some_data()
    whole = validation_loss(model, data)
    found = head_ablation(model, data.validation.batches)
    assert [len(of_layer) for of_layer in found] == [one.n_heads for one in model.attention_layers()]
    for attention, costs in zip(model.attention_layers(), found, strict=True):
        kept = attention.out_proj.weight.detach().clone()
        for head, cost in enumerate(costs):
            with torch.no_grad():
                attention.out_proj.weight[:, head * attention.d_head : (head + 1) * attention.d_head] = 0
                wanted = validation_loss(model, data) - whole
                attention.out_proj.weight.copy_(kept)
            assert cost == pytest.approx(wanted, abs=1e-6)
            assert cost != 0
    assert validation_loss(model, data) == whole


def state_of(model: LanguageModel) -> tuple[Any, ...]:
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hooks = [(name, len(module._forward_pre_hooks)) for name, module in model.named_modules()]
    return tensors, hooks, [module.training for module in model.modules()], torch.get_rng_state()


def assert_same(before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
    assert all(torch.equal(tensor, after[0][name]) for name, tensor in before[0].items())
    assert before[1:3] == after[1:3]
    assert torch.equal(before[3], after[3])


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_is_left_bit_for_bit_as_it_was(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TransformerLM(65, 16, 2, 2, 12, dropout=0.2)
    model.train()
    model.blocks[1].mlp.eval()  # a mode of its own is kept too
    before = state_of(model)
    if fails:
        calls = []

        def layer(index: int, x: torch.Tensor, *rest: Any) -> torch.Tensor:
            calls.append(index)
            if len(calls) > 5:
                raise RuntimeError("in the middle")
            return type(model).layer(model, index, x, *rest)

        monkeypatch.setattr(model, "layer", layer)
        with pytest.raises(RuntimeError, match="in the middle"):
            head_ablation(model, some_data().validation.batches)
        monkeypatch.undo()
    else:
        head_ablation(model, some_data().validation.batches)
    assert_same(before, state_of(model))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_removed_head_is_zero_even_where_its_output_is_none() -> None:
    model = TinyAttentionLM(65, 8, 2, 12)
    seen: list[torch.Tensor] = []
    with without_heads(model.attention, [1]):
        handle = model.attention.out_proj.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        model.attention.out_proj(torch.full((1, 3, 8), torch.inf))
        handle.remove()
    assert torch.equal(seen[0], torch.tensor([torch.inf] * 4 + [0.0] * 4).expand(1, 3, 8))


@pytest.mark.parametrize("head", [-1, 2])
def test_a_head_that_is_none_is_refused(head: int) -> None:
    attention = TinyAttentionLM(65, 8, 2, 12).attention
    with pytest.raises(ValueError, match=f"head {head} does not exist; .* 2 heads"), without_heads(attention, [head]):
        pass
    assert not attention.out_proj._forward_pre_hooks


# The diagnostics


@torch.no_grad()
def findings(diagnostic: HeadRoles | HeadAblation, model: LanguageModel, data: SeedData) -> list[Finding]:
    return list(diagnostic.look(model.eval(), data.probe))


def scalars(found: list[Finding]) -> dict[str, float]:
    return {tag: value for one in found if isinstance(one, Scalars) for tag, value in one.values.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model", models(), ids=["four-heads", "one-head", "three-layers"])
def test_roles_are_means_over_several_sequences_of_the_longest_length(model: LanguageModel, dtype: torch.dtype) -> None:
    model = model.to(dtype).eval()
    task = CopyTask(64, 6, min_length=4)
    data = some_data(task, 40)
    found = findings(HeadRoles(sequences=5), model, data)
    rows = torch.cat([batch.tokens for batch in data.validation.batches if batch.tokens.shape[1] == 12])[:5]
    assert len(rows) == 5
    cells = np.stack([task.answer_cells(row.numpy()) for row in rows])
    with torch.no_grad():
        maps = model.attention_maps(rows)
    wanted = {
        f"head_roles/layer_{layer}/head_{head}/{role}": value
        for layer, weights in enumerate(maps)
        for head, roles in enumerate(slow(weights.numpy(), cells))
        for role, value in roles.items()
    }
    assert scalars(found) == pytest.approx(wanted, abs=1e-5)
    (picture,) = [one for one in found if isinstance(one, Picture)]
    assert picture.tag == "head_roles/summary"
    assert_readable(picture.draw())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_ablation_takes_an_equal_share_of_every_length_and_all_if_there_are_no_more() -> None:
    model = TinyAttentionLM(65, 32, 4, 12).eval()
    data = some_data(CopyTask(64, 6, min_length=4), 24)
    whole = scalars(findings(HeadAblation(examples=500), model, data))
    costs = head_ablation(model, data.validation.batches)
    assert whole == pytest.approx({f"head_ablation/layer_0/head_{head}": costs[0][head] for head in range(4)})
    few = HeadAblation(examples=6)
    findings(few, model, data)
    assert sorted(len(tokens) for tokens, _ in few._batches) == [2, 2, 2]
    assert sorted(tokens.shape[1] for tokens, _ in few._batches) == [8, 10, 12]


@pytest.mark.parametrize(("kind", "option"), [(HeadRoles, "sequences"), (HeadAblation, "examples")])
def test_nothing_to_look_at_is_refused(kind: type[Any], option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}=0 must be at least 1"):
        kind(**{option: 0})


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ((0.9, 0.1, 0.1, 0.1, 0.1), "previous_token"),
        ((0.1, 0.2, 0.1, 0.1, 0.6), "copy"),
        ((0.49, 0.1, 0.1, 0.1, 0.1), MIXED),
        ((0.9, 0.1, 0.1, 0.1, 0.88), MIXED),
        ((1.0, 1.0, 1.0, 1.0, 1.0), MIXED),
    ],
)
def test_a_tie_or_weak_roles_are_mixed(values: tuple[float, ...], name: str) -> None:
    assert strongest_role(dict(zip(ROLES, values, strict=True))) == (name, max(values))


@pytest.mark.parametrize(("n_layers", "n_heads"), [(1, 1), (1, 4), (2, 4), (6, 16)])
@pytest.mark.parametrize("costs", [False, True])
def test_the_summary_names_every_head_and_can_be_read(n_layers: int, n_heads: int, costs: bool) -> None:
    rng = np.random.default_rng(0)
    roles = [
        [dict(zip(ROLES, (rng.random(5) ** 2).tolist(), strict=True)) for _ in range(n_heads)] for _ in range(n_layers)
    ]
    cost = [[layer + head / 100 for head in range(n_heads)] for layer in range(n_layers)]
    figure = draw_roles(roles, 16, 9, {9: cost} if costs else {3: cost})
    written = texts(figure)
    cells = [text for text in written if "\n" in text]
    assert len(cells) == n_layers * n_heads
    for (layer, head), text in zip(np.ndindex(n_layers, n_heads), cells, strict=True):
        name, value = strongest_role(roles[layer][head])
        assert text.startswith(f"{name.replace('_', ' ')}\n{value:.2f}")
        assert (f"loss {cost[layer][head]:+.3f}" in text) is costs
    assert_readable(figure)


# In a run


def last(folder: Path, group: str) -> dict[str, float]:
    """The last row's numbers of a group."""
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        row = list(csv.DictReader(file))[-1]
    return {name: float(value) for name, value in row.items() if name.startswith(group)}


@pytest.mark.parametrize("order", ["head_roles,head_ablation", "head_ablation,head_roles"])
def test_every_tag_is_there_and_the_summary_has_the_costs_of_its_own_step(
    order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[int, list[int]]] = []
    real = draw_roles

    def watch(roles: Any, n_sequences: int, step: int, costs: Any) -> Any:
        drawn.append((step, list(costs)))
        return real(roles, n_sequences, step, costs)

    monkeypatch.setattr("poslab.diagnostics.head_roles.draw_roles", watch)
    monkeypatch.setattr("poslab.experiment.trainer.Gallery", partial(Gallery, in_background=False))
    folder = train(
        tmp_path / "run", *SMALL, f"diagnostics=[{order}]", "model=transformer", "model.n_layers=3",
        "diagnostics.head_ablation.every=2",
    )  # fmt: skip
    events = read(folder)
    for layer in range(3):
        for head in range(4):
            assert steps(events, f"head_ablation/layer_{layer}/head_{head}") == [0, 6, 9]
            for role in ROLES:
                assert steps(events, f"head_roles/layer_{layer}/head_{head}/{role}") == [0, 3, 6, 9]
    assert steps(events, "head_roles/summary") == [0, 3, 6, 9]
    # At step 3 those of step 0 are still known, and `draw_roles` leaves them out.
    assert drawn == [(0, [0]), (3, [0]), (6, [6]), (9, [9])]


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("seed=1", "logger=none", "diagnostics=[head_roles,head_ablation]"),
    ],
    ids=["seed-0", "seed-1"],
)
def test_the_head_that_a_trained_model_needs_most_copies(
    overrides: tuple[str, ...], finished_runs: Callable[..., Path]
) -> None:
    folder = finished_runs(*overrides)
    costs = last(folder, "head_ablation/")
    dearest = max(costs, key=costs.__getitem__)
    assert costs[dearest] > 0.01
    roles = last(folder, dearest.replace("head_ablation", "head_roles"))
    assert roles[f"{dearest.replace('head_ablation', 'head_roles')}/copy"] > 0.8
