"""Diagnostics: what each looks at, when, and that looking changes nothing and never ends a training."""

import csv
import errno
import gc
import json
import logging
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from matplotlib import pyplot

from poslab.build import build_task
from poslab.config.schema import checked
from poslab.data.module import Probe
from poslab.data.stream import BatchStream
from poslab.diagnostics import Diagnostic, Finding, Gallery, Picture, Scalars, Text, build_diagnostics, heads
from poslab.diagnostics.embedding_gradient import EmbeddingGradient
from poslab.diagnostics.heads import HeadMaps
from poslab.diagnostics.neighbour_similarity import NeighbourSimilarity
from poslab.diagnostics.parameters import Parameters, parameter_table
from poslab.diagnostics.position_table import PositionTable
from poslab.errors import ConfigError
from poslab.evaluation.metrics import neighbour_cosine_curve
from poslab.model import MultiHeadSelfAttention, TinyAttentionLM
from poslab.pictures import drawing
from poslab.pictures import figures as figures_module
from poslab.pictures import gallery as gallery_module
from poslab.pictures.figures import to_png
from poslab.positions import LearnedPositionalEmbedding, NoPositions, PositionScheme, SinusoidalPositionalEmbedding
from poslab.training.module import TrainingModule
from support.configs import compose
from support.event_files import IMAGES, read, steps
from support.paths import CONF
from support.probes import a_model, a_probe, findings, pictures
from support.processes import children, needs_fork
from support.runs import SMALL, numbers, said, status, train

ONE_EPOCH = (*SMALL, "trainer.max_epochs=1")
NAMES = sorted({path.stem for path in (CONF / "diagnostics").glob("*.yaml")} - {"all", "none"})
FILES = {f"{tag.replace('/', '_')}.png" for tag in IMAGES}


@cache
def default_options() -> dict[str, Any]:
    """The diagnostics of the default job, as configured."""
    return checked(compose()).diagnostics


def figures(folder: Path) -> set[str]:
    return {path.name for path in (folder / "figures").glob("*")}


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, Any]]:
    """Every picture that a run orders: tag, step, and the partial that would draw it; nothing is drawn."""
    orders: list[tuple[str, int, Any]] = []
    monkeypatch.setattr(Gallery, "order", lambda self, tag, step, make: orders.append((tag, step, make)))
    return orders


# When


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


# What each looks at


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


def test_similarity_is_the_curve_of_the_models_own_table() -> None:
    model = a_model()
    found = findings(NeighbourSimilarity(max_offset=3), model)
    (scalars,) = [one.values for one in found if isinstance(one, Scalars)]
    wanted = neighbour_cosine_curve(model.positions.table(), 3)
    assert scalars == {f"neighbour_similarity/offset_{k}": wanted[k - 1] for k in (1, 2, 3)}


def test_similarity_keeps_the_untrained_curve_for_comparison() -> None:
    model = a_model()
    diagnostic = NeighbourSimilarity()
    first = pictures(diagnostic, model)["neighbour_similarity/curve"].draw.args  # type: ignore[attr-defined]
    assert first[1] is None
    for _ in range(2):
        with torch.no_grad():
            model.positions.embedding.weight.normal_()
        later = pictures(diagnostic, model)["neighbour_similarity/curve"].draw.args  # type: ignore[attr-defined]
        assert later[1] == first[0]
        assert later[0] != first[0]


def test_what_was_seen_is_remembered_by_a_run_that_goes_on() -> None:
    model = a_model()
    before, after = NeighbourSimilarity(), NeighbourSimilarity()
    start = pictures(before, model)["neighbour_similarity/curve"].draw.args[0]  # type: ignore[attr-defined]
    after.load_state_dict(before.state_dict())
    assert pictures(after, a_model())["neighbour_similarity/curve"].draw.args[1] == start  # type: ignore[attr-defined]


@pytest.mark.parametrize(("rows", "offsets"), [(12, 8), (5, 4), (2, 1)])
def test_a_short_table_has_as_many_offsets_as_it_has(rows: int, offsets: int) -> None:
    model = a_model(LearnedPositionalEmbedding(12, 32))
    model.positions.table = lambda: torch.randn(rows, 32)  # type: ignore[method-assign]
    (scalars,) = [one.values for one in findings(NeighbourSimilarity(), model) if isinstance(one, Scalars)]
    assert list(scalars) == [f"neighbour_similarity/offset_{k}" for k in range(1, offsets + 1)]


@pytest.mark.parametrize("rows", [None, 1])
def test_without_neighbours_there_are_pictures_but_no_numbers(rows: int | None) -> None:
    model = a_model(NoPositions())
    if rows:
        model.positions.table = lambda: torch.ones(rows, 32)  # type: ignore[method-assign]
    found = findings(NeighbourSimilarity(), model)
    assert [type(one) for one in found] == [Picture, Picture]
    written = [one.draw().labels[0].text for one in found if isinstance(one, Picture)]
    assert all(("single row" if rows else "no table") in text for text in written)


def test_at_least_one_offset_is_needed() -> None:
    with pytest.raises(ValueError, match="max_offset=0 must be at least 1"):
        NeighbourSimilarity(max_offset=0)


def test_parameters_are_told_once() -> None:
    diagnostic, model = Parameters(), a_model()
    scalars, text = findings(diagnostic, model)
    assert isinstance(scalars, Scalars)
    assert isinstance(text, Text)
    assert scalars.values["parameters/total"] == sum(p.numel() for p in model.parameters())
    assert text.markdown.splitlines()[2] == "| total | 8,833 | 100.0% |"
    assert findings(diagnostic, model) == []


def test_parameter_table_of_an_empty_model() -> None:
    assert parameter_table({"total": 0, "position": 0}).splitlines()[2:] == [
        "| total | 0 | 0.0% |",
        "| position | 0 | 0.0% |",
    ]


def test_gradient_rows_are_exactly_the_tokens_of_the_step(tmp_path: Path, ordered: list[Any]) -> None:
    train(tmp_path / "run", *SMALL, "diagnostics=[embedding_gradient]", "seed=5")
    task = build_task(checked(compose()))
    stream = BatchStream(task, 5, "train", 4, task.vocab_size)
    drawn = [(step, *make.args) for _, step, make in ordered]
    assert [step for step, *_ in drawn] == [0, 3, 6, 9]
    assert "no step has been taken" in drawn[0][1]
    for look, norms, step in drawn[1:]:
        # The newest gradient that was seen: of the update before this look.
        assert step == look - 1
        assert np.flatnonzero(norms).tolist() == torch.unique(stream.batch(step).tokens).tolist()
        assert np.isfinite(norms).all()


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


# Looking changes nothing


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
    groups = ("neighbour_similarity/", "parameters/", "embedding_gradient/", "head_roles/", "head_ablation/")
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


# Failures


class Fails(Exception):
    """What a broken diagnostic raises."""


def half(self: HeadMaps, model: TinyAttentionLM, probe: Probe) -> Iterator[Finding]:
    yield Scalars({"heads/before": 1.0})
    raise Fails("cannot look")


def test_a_look_that_raises_is_warned_of_once_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(HeadMaps, "look", half)
    with caplog.at_level(logging.DEBUG, logger="poslab"):
        folder = train(tmp_path / "run", *SMALL, "trainer.max_epochs=2")
    assert said(caplog) == [
        "diagnostic HeadMaps failed at step 0, training goes on (see train.log): Fails('cannot look')"
    ]
    assert status(folder) == "completed"
    assert figures(folder) == FILES - {"heads_layer_0.png"}
    events = read(folder)
    # What it had found before is shown, and it is asked again every time.
    assert steps(events, "heads/before") == [0, 3, 6]
    details = [record for record in caplog.records if record.getMessage() == "diagnostic HeadMaps failed"]
    assert len(details) == 3
    assert all(record.exc_info for record in details)


@pytest.mark.parametrize("in_background", [pytest.param(True, marks=needs_fork), False])
def test_a_drawing_that_raises_costs_its_picture_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, in_background: bool
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise Fails("cannot draw")

    monkeypatch.setattr(heads, "draw_heads", fail)
    monkeypatch.setattr("poslab.experiment.trainer.Gallery", partial(Gallery, in_background))
    folder = train(tmp_path / "run", *SMALL, "trainer.max_epochs=2")
    (warning,) = said(caplog)
    assert "heads/layer_0 failed at step 0, training goes on" in warning
    assert "cannot draw" in warning
    assert status(folder) == "completed"
    assert figures(folder) == FILES - {"heads_layer_0.png"}
    assert steps(read(folder), "positions/table") == [0, 3, 6]


def test_a_full_disk_costs_files_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gallery_module, "write_atomically", full)
    folder = train(tmp_path / "run", *SMALL, "trainer.max_epochs=2", "diagnostics=[position_table]")
    (warning,) = said(caplog)
    assert "No space left on device" in warning
    assert status(folder) == "completed"
    assert figures(folder) == set()


def test_a_figures_folder_that_cannot_be_made_costs_files_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "figures").write_text("in the way")
    train(folder, *SMALL, "trainer.max_epochs=2", "diagnostics=[position_table]")
    assert len(said(caplog)) == 1
    assert status(folder) == "completed"


@pytest.fixture
def drawn_by_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where this process has one core only."""
    monkeypatch.setattr("poslab.experiment.trainer.Gallery", partial(Gallery, in_background=True))


@needs_fork
@pytest.mark.usefixtures("drawn_by_a_child")
def test_a_child_that_is_killed_costs_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, before = drawing.draw, children()

    def die_once(orders: list[drawing.Order]) -> list[drawing.Drawn]:
        if not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return real(orders)

    # Where the process that draws has it from; the training has its own.
    monkeypatch.setattr(drawing, "draw", die_once)
    folder = train(tmp_path / "run", *SMALL, "trainer.max_epochs=2")
    assert said(caplog)
    assert len(said(caplog)) == len(set(said(caplog))) <= len(IMAGES)
    assert all("step 0" in warning and "its process ended early" in warning for warning in said(caplog))
    assert status(folder) == "completed"
    assert figures(folder) == FILES
    assert steps(read(folder), "heads/layer_0") == [3, 6]
    assert children() == before


@needs_fork
@pytest.mark.usefixtures("drawn_by_a_child")
def test_a_child_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = children()
    monkeypatch.setattr(drawing, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(drawing, "draw", lambda _: time.sleep(600))
    started = time.monotonic()
    folder = train(tmp_path / "run", *SMALL, "diagnostics=[heads]")
    assert time.monotonic() - started < 60
    (warning,) = said(caplog)
    assert "its process took too long" in warning
    assert status(folder) == "completed"
    assert children() == before


@needs_fork
def test_background_and_in_place_leave_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poslab.experiment.trainer.Gallery", partial(Gallery, in_background=True))
    back = train(tmp_path / "back", *ONE_EPOCH)
    monkeypatch.setattr("poslab.experiment.trainer.Gallery", partial(Gallery, in_background=False))
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    place = train(tmp_path / "place", *ONE_EPOCH)
    shown = [
        {tag: [(one.step, one.encoded_image_string) for one in events.Images(tag)] for tag in IMAGES}
        for events in (read(back), read(place))
    ]
    assert shown[0] == shown[1]
    assert numbers(back) == numbers(place)
    for name in FILES:
        assert (back / "figures" / name).read_bytes() == (place / "figures" / name).read_bytes(), name


@needs_fork
@pytest.mark.usefixtures("drawn_by_a_child")
def test_no_process_is_left_by_a_run_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise Fails("training")

    before = children()
    monkeypatch.setattr(TrainingModule, "training_step", fail)
    with pytest.raises(Fails):
        train(tmp_path / "run", *ONE_EPOCH, "diagnostics=[position_table]")
    assert children() == before
    # The untrained state was seen.
    assert figures(tmp_path / "run") == {"positions_table.png"}


def test_no_figure_stays_open_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []
    real = figures_module.LabelledFigure

    def watch(*arguments: Any, **options: Any) -> Any:
        figure = real(*arguments, **options)
        made.append(weakref.ref(figure))
        return figure

    monkeypatch.setattr(figures_module, "LabelledFigure", watch)
    monkeypatch.setattr("poslab.experiment.trainer.Gallery", partial(Gallery, in_background=False))
    train(tmp_path / "run", *ONE_EPOCH)
    gc.collect()
    assert len(made) == 2 * len(IMAGES)
    assert [reference() for reference in made if reference() is not None] == []
    assert pyplot.get_fignums() == []


def test_gradient_is_looked_at_on_the_logging_interval_only(tmp_path: Path) -> None:
    folder = train(
        tmp_path / "run", *SMALL, "trainer.log_every_n_steps=2", "diagnostics=[embedding_gradient]", "logger=none"
    )
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        seen = [int(row["step"]) for row in csv.DictReader(file) if row["embedding_gradient/rows"]]
    assert seen == [0, 2, 4, 6, 8]
    assert EmbeddingGradient().every == 1
