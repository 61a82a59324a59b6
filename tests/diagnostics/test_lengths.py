"""Length generalisation in a run: what is written where, what is out of reach, and going on with a stopped run."""

import csv
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from poslab.build import build_model, build_task
from poslab.config.schema import checked
from poslab.data.module import SeedData
from poslab.data.stream import BatchStream
from poslab.diagnostics import Gallery, build_diagnostics
from poslab.diagnostics.lengths import Lengths, default_lengths, draw_lengths
from poslab.errors import ConfigError
from poslab.evaluation.lengths import AtLength, at_lengths
from poslab.pictures.figures import to_png
from poslab.runs.result import by_length
from support.configs import compose
from support.event_files import read, steps, values
from support.runs import SMALL, numbers, said, status, train
from support.stopping import stopped_at

RANGE = (*SMALL, "task.length=5", "task.min_length=2", "diagnostics=[lengths]")
"""Nine steps at lengths 2 to 5; looked at 5, 7, 8 and 10."""
ASKED = (5, 7, 8, 10)


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def lengths_in(folder: Path) -> dict[str, dict[int, float]]:
    return by_length(result(folder)["metrics"])


def rows(folder: Path, name: str) -> dict[int, float]:
    """One column of ``metrics.csv`` by step."""
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        return {int(row["step"]): float(row[name]) for row in csv.DictReader(file) if row.get(name)}


@pytest.mark.parametrize(
    ("trained", "wanted"),
    [
        (range(2, 21), [20, 25, 30, 40]),
        (range(2, 7), [6, 8, 9, 12]),
        (range(1, 3), [2, 3, 4]),
        (range(6, 7), []),
    ],
)
def test_lengths_around_the_range_of_training_are_looked_at_by_default(trained: range, wanted: list[int]) -> None:
    assert default_lengths(trained) == wanted


def test_every_length_is_scored_at_the_end_and_written_everywhere(finished_runs: Callable[..., Path]) -> None:
    folder = finished_runs(*RANGE, "pos=alibi")
    job = checked(compose(*RANGE, "pos=alibi"))
    task = build_task(job)
    model = build_model(job, task)
    state = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in state.items()})
    wanted = at_lengths(model, SeedData(task, job.data, job.seed, task.vocab_size), ASKED, 512)
    events = read(folder)
    for at in wanted:
        for score in ("accuracy", "exact_match", *(("free_accuracy",) if at.length > 5 else ())):
            name = f"length/{at.length}/{score}"
            assert result(folder)["metrics"][name] == getattr(at, score)
            assert rows(folder, name) == {9: getattr(at, score)}
            assert steps(events, name) == [9]
    assert "length/5/free_accuracy" not in result(folder)["metrics"], "not past the training length"
    assert max(at.accuracy for at in wanted) > 0, "or there is nothing to see here"
    assert result(folder)["out_of_reach"] == {}
    assert steps(events, "length/curve") == [9]
    assert (folder / "figures" / "length_curve.png").exists()


def test_the_curve_s_step_is_the_length_in_the_dashboard_and_nowhere_else(finished_runs: Callable[..., Path]) -> None:
    folder = finished_runs(*RANGE, "pos=alibi")
    events = read(folder)
    for score, curve in lengths_in(folder).items():
        assert steps(events, f"length_curve/{score}") == list(ASKED if score != "free_accuracy" else ASKED[1:])
        assert values(events, f"length_curve/{score}") == pytest.approx(list(curve.values()))
    assert set(lengths_in(folder)) == {"accuracy", "exact_match", "free_accuracy"}
    text = (folder / "metrics.csv").read_text()
    assert "length_curve" not in text
    assert [int(line.split(",")[0]) for line in text.splitlines()[1:]] == list(range(10))
    assert not any(name.startswith("length_curve") for name in result(folder)["metrics"])


def test_what_is_out_of_reach_is_recorded_said_once_and_drawn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="poslab"):
        folder = train(
            tmp_path / "run", *RANGE, "model.max_context_length=14", "diagnostics.lengths.every=1", "pos=learned"
        )
    assert status(folder) == "completed"
    assert said(caplog) == []
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("out of reach")]
    assert lines == [
        "out of reach: length/8, length/10 (LearnedPositionalEmbedding has 14 positions and cannot place 16 tokens; "
        "it has to be trained with max_context_length 16 or more)"
    ]
    found = result(folder)["out_of_reach"]
    assert list(found) == ["length/8", "length/10"]
    assert "cannot place 20 tokens" in found["length/10"]
    assert list(lengths_in(folder)["exact_match"]) == [5, 7]
    assert steps(read(folder), "length/curve") == [0, 3, 6, 9]
    assert steps(read(folder), "length_curve/accuracy") == [5, 7]
    (table,) = [record.getMessage() for record in caplog.records if "run completed" in record.getMessage()]
    assert "8: out of reach, 10: out of reach" in table


def test_lengths_that_the_task_does_not_have_are_out_of_reach(tmp_path: Path) -> None:
    few = ("task.n_symbols=6", "task.distinct=true", "diagnostics.lengths.lengths=[7,4,6]", "pos=none")
    folder = train(tmp_path / "run", *RANGE, *few)
    assert list(lengths_in(folder)["accuracy"]) == [4, 6]
    assert "only 6" in result(folder)["out_of_reach"]["length/7"]


def test_on_an_interval_there_is_a_curve_by_step_too(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", *RANGE, "diagnostics.lengths.every=2", "diagnostics.lengths.lengths=[6]")
    assert list(rows(folder, "length/6/accuracy")) == [], "the default table has 10 rows"
    assert list(result(folder)["out_of_reach"]) == ["length/6"]
    folder = train(tmp_path / "far", *RANGE, "diagnostics.lengths.every=2", "pos=t5")
    assert list(rows(folder, "length/10/accuracy")) == [0, 6, 9]
    assert steps(read(folder), "length_curve/accuracy") == list(ASKED), "the last state alone"


def test_a_task_of_one_length_is_looked_at_only_where_asked(finished_runs: Callable[..., Path]) -> None:
    one = (*SMALL, "diagnostics=[lengths]", "pos=rope")
    folder = finished_runs(*one)
    assert lengths_in(folder) == {}
    assert not (folder / "figures").exists()
    assert list(lengths_in(finished_runs(*one, "diagnostics.lengths.lengths=[3,9]"))["exact_match"]) == [3, 9]


def test_the_lengths_that_a_run_was_trained_on_are_recorded(finished_runs: Callable[..., Path]) -> None:
    job = checked(compose(*RANGE))
    task = build_task(job)
    stream = BatchStream(task, job.seed, "train", 4, task.vocab_size)
    wanted = Counter(stream.batch(step).tokens.shape[1] // 2 for step in range(9))
    assert result(finished_runs(*RANGE, "pos=alibi"))["batches_by_length"] == {
        str(length): wanted[length] for length in sorted(wanted)
    }
    assert result(finished_runs(*SMALL, "diagnostics=[lengths]", "pos=rope"))["batches_by_length"] == {"6": 9}


def test_looking_changes_no_other_number(tmp_path: Path) -> None:
    noisy = ("model.dropout=0.3", "pos=sinusoidal", "pos.train_offset=random", "model.max_context_length=30")
    on = train(tmp_path / "on", *RANGE, *noisy, "diagnostics.lengths.every=1")
    off = train(tmp_path / "off", *RANGE, *noisy, "diagnostics=none")
    assert lengths_in(on)
    assert numbers(on, "length/") == numbers(off)


@pytest.mark.parametrize("every", ["null", "1"])
@pytest.mark.parametrize("update", [4, 8])
def test_a_stopped_run_ends_as_an_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_runs: Callable[..., Path], every: str, update: int
) -> None:
    overrides = (*RANGE, "pos=learned", "model.max_context_length=14", f"diagnostics.lengths.every={every}")
    whole = finished_runs(*overrides)
    folder = stopped_at(tmp_path / "stopped", update, monkeypatch, *overrides)
    assert read(folder).Tags()["scalars"].count("length_curve/accuracy") == 0
    train(folder, *overrides, "resume=auto")
    assert (folder / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    for part in ("metrics", "out_of_reach", "batches_by_length"):
        assert result(folder)[part] == result(whole)[part]
    assert steps(read(folder), "length_curve/accuracy") == [5, 7]
    assert steps(read(folder), "length/5/accuracy") == steps(read(whole), "length/5/accuracy")


@pytest.mark.parametrize("every", ["null", "1"])
def test_a_run_that_is_stopped_after_its_last_step_is_still_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_runs: Callable[..., Path], every: str
) -> None:
    overrides = (*RANGE, "pos=learned", "model.max_context_length=14", f"diagnostics.lengths.every={every}")
    whole = finished_runs(*overrides)
    folder = tmp_path / "stopped"

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Lengths, "on_train_end", interrupt)
        with pytest.raises(SystemExit):
            train(folder, *overrides)
    assert status(folder) == "interrupted"
    train(folder, *overrides, "resume=auto")
    for part in ("metrics", "out_of_reach", "batches_by_length"):
        assert result(folder)[part] == result(whole)[part]
    assert (folder / "figures/length_curve.png").read_bytes() == (whole / "figures/length_curve.png").read_bytes()
    assert steps(read(folder), "length_curve/accuracy") == [5, 7]


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("lengths=30", r"lengths=30 must be a list of whole numbers"),
        ("lengths=[3,x]", r"lengths=\[3, 'x'\] must be a list of whole numbers"),
        ("n_examples=0", r"n_examples=0 must be at least 1"),
        ("every=-1", r"every=-1 must be at least 1, or 0 to switch it off, or null for the end only"),
    ],
)
def test_options_that_make_no_sense_are_refused(option: str, message: str) -> None:
    options = checked(compose("diagnostics=[lengths]", f"diagnostics.lengths.{option}")).diagnostics
    with pytest.raises(ConfigError, match=message):
        build_diagnostics(options, Gallery())


def test_the_curve_shows_scores_the_training_range_and_what_is_missing() -> None:
    found = [
        AtLength(4, 0.9, 0.5, None),
        AtLength(6, 0.4, 0.0, None, 0.25),
        AtLength(9, None, None, "the table ends at 14"),
    ]
    figure = draw_lengths(found, 2, 4)
    (axes,) = figure.axes
    lines = [line.get_xydata().tolist() for line in axes.lines]
    assert lines == [[[4, 0.9], [6, 0.4]], [[4, 0.5], [6, 0.0]], [[6, 0.25]], [[9, 0.0]]]
    (shade,) = axes.patches
    assert shade.get_x() < 2
    assert 4 < shade.get_x() + shade.get_width() < 6
    assert any("the table ends at 14" in label.text for label in figure.labels)
    assert len(to_png(figure)) > 1000
