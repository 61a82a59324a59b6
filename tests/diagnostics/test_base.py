"""When diagnostics look, which are on, and that looking changes nothing."""

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from poslab.config.schema import checked
from poslab.data.module import Probe
from poslab.diagnostics import Diagnostic, Finding, Gallery, build_diagnostics
from poslab.diagnostics.heads import HeadMaps
from poslab.diagnostics.neighbour_similarity import NeighbourSimilarity
from poslab.diagnostics.position_table import PositionTable
from poslab.errors import ConfigError
from poslab.model import MultiHeadSelfAttention, TinyAttentionLM
from poslab.pictures.figures import to_png
from poslab.positions import LearnedPositionalEmbedding, PositionScheme, SinusoidalPositionalEmbedding
from support.configs import compose
from support.diagnosed_runs import FILES, ONE_EPOCH, figures
from support.event_files import IMAGES, read, steps
from support.paths import CONF
from support.probes import a_model, a_probe, pictures
from support.runs import SMALL, numbers, said, train

NAMES = sorted({path.stem for path in (CONF / "diagnostics").glob("*.yaml")} - {"all", "none"})


@cache
def default_options() -> dict[str, Any]:
    """The diagnostics of the default job, as configured."""
    return checked(compose()).diagnostics


def test_each_is_shown_on_its_own_interval_and_the_last_state_always(tmp_path: Path) -> None:
    folder = train(
        tmp_path / "run",
        *SMALL,
        "trainer.max_epochs=4",
        "diagnostics.heads.every=3",
        "diagnostics.position_table.every=2",
        "diagnostics.neighbour_similarity.every=0",
        "~diagnostics.embedding_gradient",
        "~diagnostics.head_roles",
    )
    events = read(folder)
    assert set(events.Tags()["images"]) == {"heads/layer_0", "positions/table"}
    assert steps(events, "heads/layer_0") == [0, 9, 12]
    assert steps(events, "positions/table") == [0, 6, 12]
    scalars = events.Tags()["scalars"]
    assert not any(tag.startswith(("neighbour_similarity", "embedding_gradient")) for tag in scalars)
    assert steps(events, "parameters/total") == [0]
    assert figures(folder) == {"heads_layer_0.png", "positions_table.png"}


def test_a_run_that_ends_between_two_looks_is_looked_at_once_more(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", *SMALL, "trainer.max_steps=5", "diagnostics=[heads]", "diagnostics.heads.every=9")
    events = read(folder)
    assert steps(events, "heads/layer_0") == [0, 5]
    last = events.Images("heads/layer_0")[-1].encoded_image_string
    assert (folder / "figures" / "heads_layer_0.png").read_bytes() == last


def test_none_leaves_neither_picture_nor_number_of_a_diagnostic(finished_runs: Callable[..., Path]) -> None:
    folder = finished_runs(*ONE_EPOCH, "diagnostics=none")
    events = read(folder)
    assert events.Tags()["images"] == []
    assert not any("neighbour" in tag or "parameters" in tag or "embedding" in tag for tag in events.Tags()["scalars"])
    assert not (folder / "figures").exists()
    # The answer is given all the same.
    assert "neighbour_similarity/offset_1" in json.loads((folder / "result.json").read_text())["metrics"]


def test_a_chosen_few(finished_runs: Callable[..., Path]) -> None:
    folder = finished_runs(*ONE_EPOCH, "diagnostics=[heads,position_table]")
    assert set(read(folder).Tags()["images"]) == {"heads/layer_0", "positions/table"}


@pytest.mark.parametrize("name", NAMES)
def test_each_can_be_switched_off_alone(name: str) -> None:
    options = default_options()
    whole = build_diagnostics(options, Gallery())
    for override in (f"diagnostics.{name}.every=0", f"~diagnostics.{name}"):
        left = build_diagnostics(checked(compose(override)).diagnostics, Gallery())
        gone = {type(one).__name__ for one in whole} - {type(one).__name__ for one in left}
        assert len(left) == len(whole) - 1
        assert gone == {options[name]["_target_"].rpartition(".")[2]}


@pytest.mark.parametrize("name", NAMES)
def test_each_can_be_chosen_alone_and_takes_an_interval(name: str) -> None:
    (only,) = build_diagnostics(
        checked(compose(f"diagnostics=[{name}]", f"diagnostics.{name}.every=2")).diagnostics, Gallery()
    )
    assert only.every == 2


def test_every_diagnostic_has_a_file_and_is_on_by_default() -> None:
    assert {"parameters", "neighbour_similarity", "position_table", "heads", "embedding_gradient"} <= set(NAMES)
    assert set(default_options()) <= set(NAMES)
    assert yaml.safe_load((CONF / "diagnostics" / "none.yaml").read_text()) == {}


def test_an_interval_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"diagnostics\.heads: every=-1 must be at least 1, or 0"):
        build_diagnostics(checked(compose("diagnostics.heads.every=-1")).diagnostics, Gallery())


def test_pictures_go_to_the_gallery_that_draws_them() -> None:
    gallery = Gallery()
    assert all(one.gallery is gallery for one in build_diagnostics(default_options(), gallery))


def test_heads_shows_the_weights_of_each_head_not_their_mean() -> None:
    model = a_model()
    (picture,) = pictures(HeadMaps(), model).values()
    weights, labels, cells, layer = picture.draw.args  # type: ignore[attr-defined]
    assert picture.draw.keywords == {"block": 1, "on": ""}  # type: ignore[attr-defined]
    probe = a_probe()
    with torch.no_grad():
        x = model.embeddings(probe.tokens)
        q, k, _ = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in model.attention.qkv_proj(x).chunk(3, dim=-1))
        scores = (q @ k.mT / 8**0.5).masked_fill(~torch.ones(12, 12, dtype=torch.bool).tril(), -torch.inf)
        wanted = scores.softmax(-1)[0].numpy()
    assert weights.shape == (4, 12, 12)
    assert np.allclose(weights, wanted, atol=1e-6)
    assert not np.allclose(weights[0], weights[1])
    assert (labels, layer) == (probe.labels, 0)
    assert np.array_equal(cells, probe.answer_cells)


def test_layers_are_counted_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_model()
    real = model.attention_maps(a_probe().tokens)[0].detach()
    monkeypatch.setattr(model, "attention_maps", lambda ids, keep: [keep(real), keep(real.flip(1))], raising=True)
    found = pictures(HeadMaps(), model)
    assert list(found) == ["heads/layer_0", "heads/layer_1"]
    assert np.array_equal(found["heads/layer_1"].draw.args[0], real.flip(1)[0].numpy())  # type: ignore[attr-defined]
    assert found["heads/layer_1"].draw.args[3] == 1  # type: ignore[attr-defined]


def test_weights_are_made_for_looks_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordered: list[Any]) -> None:
    """Training and validation stay on the fused kernel; a look takes one sequence, without gradient."""
    made: list[tuple[int, bool, bool]] = []
    real = MultiHeadSelfAttention._attend_with_weights

    def watch(self: MultiHeadSelfAttention, q: torch.Tensor, *rest: Any) -> Any:
        made.append((q.shape[0], torch.is_grad_enabled(), self.training))
        return real(self, q, *rest)

    monkeypatch.setattr(MultiHeadSelfAttention, "_attend_with_weights", watch)
    train(tmp_path / "run", *SMALL, "diagnostics=[heads]")
    assert made == [(1, False, False)] * 4
    assert [step for tag, step, _ in ordered if tag == "heads/layer_0"] == [0, 3, 6, 9]


SCHEMES: dict[str, Callable[[], PositionScheme]] = {
    "learned": lambda: LearnedPositionalEmbedding(12, 32),
    "sinusoidal": lambda: SinusoidalPositionalEmbedding(12, 32),
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", [HeadMaps, NeighbourSimilarity, PositionTable])
def test_later_training_does_not_alter_what_is_drawn(kind: type[Diagnostic], scheme: str) -> None:
    model, fresh = a_model(SCHEMES[scheme]()), kind()
    found = pictures(fresh, model)
    before = {tag: to_png(picture.draw()) for tag, picture in found.items()}
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.add_(torch.randn_like(tensor))
    assert {tag: to_png(picture.draw()) for tag, picture in found.items()} == before
    assert all(to_png(picture.draw()) != before[tag] for tag, picture in pictures(kind(), model).items())


def test_an_order_holds_no_tensor(tmp_path: Path, ordered: list[Any]) -> None:
    train(tmp_path / "run", *ONE_EPOCH)
    assert {tag for tag, *_ in ordered} == IMAGES
    for tag, _, make in ordered:
        for argument in make.args:
            assert not isinstance(argument, (torch.Tensor, torch.nn.Module)), tag


@pytest.mark.parametrize("kind", [HeadMaps, NeighbourSimilarity, PositionTable])
def test_a_model_in_bf16_can_be_looked_at(kind: type[Diagnostic]) -> None:
    found = pictures(kind(), a_model().to(torch.bfloat16))
    assert found
    assert all(len(to_png(picture.draw())) > 1000 for picture in found.values())


def test_a_run_in_bf16_has_all_its_pictures(
    finished_runs: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = finished_runs(*ONE_EPOCH, "trainer.precision=bf16")
    assert figures(folder) == FILES
    assert said(caplog) == []


def test_numbers_and_weights_are_the_same_with_diagnostics_on_off_or_broken(
    finished_runs: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, so that one random number more or less, or a mode not given back, would show."""
    overrides = (*SMALL, "model.dropout=0.3", "trainer.max_epochs=2")
    runs = [finished_runs(*overrides), train(tmp_path / "off", *overrides, "diagnostics=none")]

    def fail(self: HeadMaps, model: TinyAttentionLM, probe: Probe) -> Iterable[Finding]:
        raise RuntimeError("broken")

    monkeypatch.setattr(HeadMaps, "look", fail)
    runs.append(train(tmp_path / "broken", *overrides, "diagnostics=[heads]"))
    groups = ("neighbour_similarity/", "parameters/", "embedding_gradient/", "head_roles/", "head_ablation")
    tables = [numbers(folder, *groups) for folder in runs]
    assert tables[0] == tables[1] == tables[2]
    assert len(tables[0]) == 7
    states = [torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True) for folder in runs]
    for name, tensor in states[0]["state_dict"].items():
        assert all(torch.equal(tensor, state["state_dict"][name]) for state in states), name


def test_each_leaves_the_random_state_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordered: list[Any]
) -> None:
    real = Diagnostic._report
    looks: list[str] = []

    def watch(self: Diagnostic, trainer: Any, module: Any) -> None:
        before, mode = torch.get_rng_state(), module.training
        real(self, trainer, module)
        assert torch.equal(torch.get_rng_state(), before), type(self).__name__
        assert module.training is mode, type(self).__name__
        looks.append(type(self).__name__)

    monkeypatch.setattr(Diagnostic, "_report", watch)
    train(tmp_path / "run", *ONE_EPOCH, "model.dropout=0.3")
    assert set(looks) == {one["_target_"].rpartition(".")[2] for one in default_options().values()}
    assert {"HeadMaps", "HeadRoles", "HeadAblation"} <= set(looks)
