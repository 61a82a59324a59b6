"""Settings, final metrics and status of a run in TensorBoard's HParams tab."""

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2

from poslab.errors import DivergedError
from poslab.training import learners
from poslab.training.module import TrainingModule
from support.event_files import IMAGES, event_files, read, session, values
from support.runs import SMALL, train


def test_settings_and_final_metrics_are_in_the_runs_own_session(default: tuple[Path, EventAccumulator]) -> None:
    folder, events = default
    parts = session(events)
    assert set(parts) == {"experiment", "session_start_info", "session_end_info"}
    settings = parts["session_start_info"].session_start_info.hparams
    assert settings["model.d_model"].number_value == 32
    assert settings["optimizer.lr"].number_value == 0.005
    assert settings["pos"].string_value == "learned"
    assert settings["task"].string_value == "copy"
    metrics = {info.name.tag for info in parts["experiment"].experiment.metric_infos}
    assert {"val/loss", "val/accuracy", "val/exact_match"} <= metrics <= set(events.Tags()["scalars"])
    # The tab shows the last value of each.
    final = json.loads((folder / "result.json").read_text())["metrics"]
    for tag in metrics:
        assert values(events, tag)[-1] == pytest.approx(final[tag], rel=1e-6)
    assert parts["session_end_info"].session_end_info.status == api_pb2.STATUS_SUCCESS


def test_columns_are_numbers_texts_and_truth_values(default: tuple[Path, EventAccumulator]) -> None:
    _, events = default
    parts = session(events)
    settings = parts["session_start_info"].session_start_info.hparams
    kinds = {name: value.WhichOneof("kind") for name, value in settings.items()}
    assert kinds["model.d_model"] == "number_value"
    assert kinds["optimizer.algorithm"] == "string_value"
    assert kinds["trainer.precision"] == "string_value"
    assert kinds["model.tie_embeddings"] == "bool_value"
    types = {
        "number_value": api_pb2.DATA_TYPE_FLOAT64,
        "string_value": api_pb2.DATA_TYPE_STRING,
        "bool_value": api_pb2.DATA_TYPE_BOOL,
    }
    columns = {info.name: info.type for info in parts["experiment"].experiment.hparam_infos}
    assert columns == {name: types[kind] for name, kind in kinds.items()}


def test_a_diverged_run_is_a_failed_session_with_all_it_showed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(DivergedError):
        train(folder, *SMALL, "optimizer.lr=1e19")
    events = read(folder)
    parts = session(events)
    assert parts["session_end_info"].session_end_info.status == api_pb2.STATUS_FAILURE
    assert parts["session_start_info"].session_start_info.hparams["optimizer.lr"].number_value == 1e19
    assert "val/loss" in {info.name.tag for info in parts["experiment"].experiment.metric_infos}
    assert len(event_files(folder)) == 1
    assert json.loads((folder / "result.json").read_text())["status"] == "diverged"
    for tag in IMAGES:
        (image,) = events.Images(tag)
        assert image.step == 0
        assert (folder / "figures" / f"{tag.replace('/', '_')}.png").read_bytes() == image.encoded_image_string


@pytest.mark.parametrize(
    ("where", "error", "raised", "status"),
    [
        ("build_model", RuntimeError("no room"), RuntimeError, "failed"),
        ("training_step", RuntimeError("broken"), RuntimeError, "failed"),
        ("training_step", KeyboardInterrupt(), SystemExit, "interrupted"),
    ],
)
def test_a_run_that_fails_anywhere_is_a_failed_session(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    error: BaseException,
    raised: type[BaseException],
    status: str,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(*((learners, where, fail) if where == "build_model" else (TrainingModule, where, fail)))
    folder = tmp_path / "run"
    with pytest.raises(raised):
        train(folder, *SMALL, "diagnostics=[parameters]")
    parts = session(read(folder))
    assert parts["session_end_info"].session_end_info.status == api_pb2.STATUS_FAILURE
    assert parts["session_start_info"].session_start_info.hparams["seed"].number_value == 0
    assert json.loads((folder / "result.json").read_text())["status"] == status
    assert len(event_files(folder)) == 1
