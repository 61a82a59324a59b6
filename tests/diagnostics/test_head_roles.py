"""The diagnostics of heads: roles, what each head costs, their summary, and their tags in a run."""

import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from poslab.data.module import SeedData
from poslab.diagnostics import Finding, Gallery, Picture, Scalars
from poslab.diagnostics.head_ablation import HeadAblation
from poslab.diagnostics.head_roles import MIXED, HeadRoles, draw_roles, strongest_role
from poslab.evaluation.heads import ROLES, head_ablation
from poslab.model import LanguageModel, TinyAttentionLM
from poslab.tasks.copy import CopyTask
from support.event_files import read, steps
from support.figures import assert_readable, texts
from support.runs import SMALL, train
from support.slow_roles import slow
from support.two_models import models, some_data


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
    by_mean = head_ablation(model, data.validation.batches, by_mean=True)
    wanted = {f"head_ablation/layer_0/head_{head}": costs[0][head] for head in range(4)}
    wanted |= {f"head_ablation_mean/layer_0/head_{head}": by_mean[0][head] for head in range(4)}
    assert whole == pytest.approx(wanted)
    assert costs != by_mean
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


def test_the_summary_shows_the_value_of_the_same_role_before_training() -> None:
    values = [[{role: 0.1 * (index + 1) for index, role in enumerate(ROLES)} | {"copy": 0.9}]]
    start = [[{role: 0.01 * (index + 1) for index, role in enumerate(ROLES)}]]
    (cell,) = [text for text in texts(draw_roles(values, 16, 9, {}, start)) if "\n" in text]
    assert cell == "copy\n0.90 (0.05)"
    mixed = [[dict.fromkeys(ROLES, 0.2) | {"self": 0.3}]]
    (cell,) = [text for text in texts(draw_roles(mixed, 16, 9, {}, start)) if "\n" in text]
    assert cell == "mixed\n0.30 (0.03) self"
    longest = [[dict.fromkeys(ROLES, 0.2) | {"previous_token": 0.3}] * 16] * 2
    assert_readable(draw_roles(longest, 16, 9, {9: [[-0.001] * 16] * 2}, longest))


def test_the_roles_before_training_are_kept_in_checkpoints() -> None:
    model, data = TinyAttentionLM(65, 32, 4, 12), some_data()
    before, after = HeadRoles(), HeadRoles()
    before._last_look = 0
    first = scalars(findings(before, model, data))
    with torch.no_grad():
        model.attention.qkv_proj.weight.mul_(20)
    after.load_state_dict(before.state_dict())
    for diagnostic in (before, after):
        diagnostic._last_look = 9
        (picture,) = [one for one in findings(diagnostic, model, data) if isinstance(one, Picture)]
        start = picture.draw.args[4]  # type: ignore[attr-defined]
        assert {
            f"head_roles/layer_0/head_{head}/{role}": start[0][head][role] for head in range(4) for role in ROLES
        } == first
    old = HeadRoles().state_dict()
    del old["start"]
    after.load_state_dict(old)
    assert after.state_dict()["start"] is None


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

    def watch(roles: Any, n_sequences: int, step: int, costs: Any, start: Any) -> Any:
        drawn.append((step, list(costs)))
        assert (start is None) == (step == 0)
        return real(roles, n_sequences, step, costs, start)

    monkeypatch.setattr("poslab.diagnostics.head_roles.draw_roles", watch)
    monkeypatch.setattr("poslab.experiment.trainer.Gallery", partial(Gallery, in_background=False))
    folder = train(
        tmp_path / "run", *SMALL, f"diagnostics=[{order}]", "model=transformer", "model.n_layers=3",
        "diagnostics.head_ablation.every=2",
    )  # fmt: skip
    events = read(folder)
    for layer in range(3):
        for head in range(4):
            for group in ("head_ablation", "head_ablation_mean"):
                assert steps(events, f"{group}/layer_{layer}/head_{head}") == [0, 6, 9]
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
