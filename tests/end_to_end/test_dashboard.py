"""What a dashboard shows of a run: every tag, read back from the files and once through TensorBoard itself."""

import csv
import io
import json
import math
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from poslab.build import build_task
from poslab.config.schema import checked
from poslab.data.stream import BatchStream
from poslab.errors import DivergedError
from poslab.experiment.run import run
from poslab.runs.tensorboard import RunTensorBoard
from poslab.training import learners
from poslab.training.module import TrainingModule
from support.configs import compose
from support.event_files import IMAGES, read, steps, values
from support.runs import SMALL, train

"""A run of nine steps."""
TIED = (*SMALL, "model.tie_embeddings=true", "diagnostics=[parameters,embedding_gradient]")
EPOCHS = [0, 120, 240, 360]
PARTS = ("total", "token_embedding", "position", "attention", "head")


def text(events: EventAccumulator, tag: str) -> str:
    (shown,) = events.Tensors(f"{tag}/text_summary")
    assert shown.step == 0
    return str(shown.tensor_proto.string_val[0].decode())


def session(events: EventAccumulator) -> dict[str, HParamsPluginData]:
    """The three parts of the HParams record: experiment, session_start_info, session_end_info."""
    contents = events.PluginTagToContent("hparams")
    return {tag.removeprefix("_hparams_/"): HParamsPluginData.FromString(part) for tag, part in contents.items()}


def event_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*tfevents*"))


@pytest.fixture(scope="module")
def default(finished_runs: Callable[..., Path]) -> tuple[Path, EventAccumulator]:
    folder = finished_runs()
    return folder, read(folder)


def test_one_event_stream_in_the_run_folder_itself(default: tuple[Path, EventAccumulator]) -> None:
    folder, _ = default
    (only,) = event_files(folder)
    assert only.parent == folder
    assert list(folder.rglob("hparams.yaml")) == []
    # Every folder with events is a run to TensorBoard: there is no other.
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"checkpoints", "figures"}


def test_validation_numbers_are_shown_at_every_epoch_and_before_the_first(
    default: tuple[Path, EventAccumulator],
) -> None:
    _, events = default
    for tag in ("val/loss", "val/accuracy", "val/exact_match"):
        assert steps(events, tag) == EPOCHS, tag
    assert values(events, "val/loss")[0] == pytest.approx(math.log(65), abs=0.1)
    assert values(events, "val/accuracy")[-1] > 0.9


def test_training_numbers_are_shown_every_ten_updates(default: tuple[Path, EventAccumulator]) -> None:
    _, events = default
    for tag in ("train/loss", "learning_rate"):
        assert steps(events, tag) == list(range(0, 360, 10)), tag
    assert values(events, "learning_rate") == pytest.approx([0.005] * 36)
    assert values(events, "train/loss")[0] == pytest.approx(math.log(65), abs=0.1)


def test_parameters_are_shown_by_part(default: tuple[Path, EventAccumulator]) -> None:
    folder, events = default
    counts = json.loads((folder / "result.json").read_text())["parameters"]
    for part in PARTS:
        assert (steps(events, f"parameters/{part}"), values(events, f"parameters/{part}")) == ([0], [counts[part]])
    assert counts["total"] == 8833 == sum(counts[part] for part in PARTS[1:])
    table = text(events, "parameters")
    assert table.startswith("| part | parameters | share |\n|---|---:|---:|\n")
    for part in PARTS:
        assert f"| {part} | {counts[part]:,} | {counts[part] / 8833:.1%} |" in table


def test_every_number_of_the_table_is_in_the_dashboard_and_the_other_way_round(
    default: tuple[Path, EventAccumulator],
) -> None:
    folder, events = default
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        table = [
            (int(row["step"]), name, float(value))
            for row in csv.DictReader(file)
            for name, value in row.items()
            if value and name != "step"
        ]
    shown = [(event.step, tag, event.value) for tag in events.Tags()["scalars"] for event in events.Scalars(tag)]
    assert sorted((step, name) for step, name, _ in table) == sorted((step, tag) for step, tag, _ in shown)
    assert [value for *_, value in sorted(table)] == pytest.approx([value for *_, value in sorted(shown)], rel=1e-6)


def test_every_picture_is_shown_at_every_look(default: tuple[Path, EventAccumulator]) -> None:
    _, events = default
    assert set(events.Tags()["images"]) == IMAGES
    for tag in IMAGES:
        assert steps(events, tag) == EPOCHS, tag


def test_a_file_is_byte_for_byte_the_last_picture_of_its_tag(default: tuple[Path, EventAccumulator]) -> None:
    folder, events = default
    files = {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}
    shown = {f"{tag.replace('/', '_')}.png": events.Images(tag) for tag in IMAGES}
    assert files.keys() == shown.keys()
    for name, images in shown.items():
        assert files[name] == images[-1].encoded_image_string, name
        picture = Image.open(io.BytesIO(files[name]))
        assert picture.format == "PNG"
        assert (images[-1].width, images[-1].height) == picture.size
        # What is learned changes what is seen.
        assert images[0].encoded_image_string != images[-1].encoded_image_string, name


def test_the_configuration_is_shown_whole(default: tuple[Path, EventAccumulator]) -> None:
    folder, events = default
    shown = text(events, "config")
    assert shown.startswith("```yaml\n")
    stored = yaml.safe_load((folder / "config.yaml").read_text())
    del stored["defaults"]
    assert yaml.safe_load(shown.strip("`").removeprefix("yaml\n")) == stored


# Positions


def test_a_learned_table_starts_unlike_and_finds_a_structure(default: tuple[Path, EventAccumulator]) -> None:
    _, events = default
    spread = 1 / math.sqrt(32 * 11)
    for offset in range(1, 9):
        tag = f"neighbour_similarity/offset_{offset}"
        assert steps(events, tag) == EPOCHS
        # Fewer pairs stand behind a larger offset.
        assert abs(values(events, tag)[0]) < 5 * spread * math.sqrt(11 / (12 - offset))
    moved = [abs(values(events, f"neighbour_similarity/offset_{k}")[-1]) for k in range(1, 9)]
    assert max(moved) > 0.2


def test_a_sinusoidal_table_never_moves(finished_runs: Callable[..., Path]) -> None:
    events = read(finished_runs(*SMALL, "pos=sinusoidal", "diagnostics=[neighbour_similarity,position_table]"))
    offsets = [tag for tag in events.Tags()["scalars"] if tag.startswith("neighbour_similarity/")]
    assert len(offsets) == 8
    for tag in offsets:
        assert steps(events, tag) == [0, 3, 6, 9]
        assert len(set(values(events, tag))) == 1, tag
    assert values(events, "neighbour_similarity/offset_1")[0] == pytest.approx(0.9571, abs=5e-5)
    frequencies = 10000.0 ** (-np.arange(0, 32, 2) / 32)
    for k in range(1, 9):
        wanted = float(np.cos(k * frequencies).mean())
        assert values(events, f"neighbour_similarity/offset_{k}")[0] == pytest.approx(wanted, abs=1e-5)
    tables = {image.encoded_image_string for image in events.Images("positions/table")}
    assert len(tables) == 1


def test_without_positions_the_pictures_say_why_there_is_nothing(finished_runs: Callable[..., Path]) -> None:
    from poslab.pictures.figures import message_figure, to_png

    folder = finished_runs(*SMALL, "pos=none", "diagnostics=[parameters,neighbour_similarity,position_table]")
    events = read(folder)
    assert set(events.Tags()["images"]) == {
        "neighbour_similarity/curve",
        "neighbour_similarity/matrix",
        "positions/table",
    }
    assert not any(tag.startswith("neighbour_similarity/") for tag in events.Tags()["scalars"])
    assert values(events, "parameters/position") == [0]
    said = to_png(message_figure("No table:\nthis position scheme adds no vectors"))
    assert {image.encoded_image_string for image in events.Images("positions/table")} == {said}
    said = to_png(message_figure("No neighbour similarity:\nthis position scheme has no table"))
    assert {image.encoded_image_string for image in events.Images("neighbour_similarity/curve")} == {said}
    assert not any(
        "neighbour_similarity" in name for name in json.loads((folder / "result.json").read_text())["metrics"]
    )


def test_the_quick_checksum_is_the_one_that_tensorboard_reads(tmp_path: Path) -> None:
    from tensorboard.compat.tensorflow_stub import pywrap_tensorflow

    RunTensorBoard(tmp_path).close()
    # Of RFC 3720, appendix B.4, and the number that every such checksum is known by.
    assert pywrap_tensorflow.crc32c(b"123456789") == 0xE3069283
    assert pywrap_tensorflow.crc32c(bytes(32)) == 0x8A9136AA
    assert pywrap_tensorflow.crc32c(bytes(range(32))) == 0x46DD794E


# Which rows a step teaches


def rows_read(folder: Path) -> Callable[[int], int]:
    """How many different tokens the batch of a step reads, from the batch made again."""
    stored = yaml.safe_load((folder / "config.yaml").read_text())
    task = build_task(checked(compose()))
    stream = BatchStream(task, stored["seed"], "train", stored["data"]["batch_size"], task.vocab_size)
    return lambda step: len(torch.unique(stream[step].tokens))


def test_only_the_rows_that_a_step_reads_receive_gradient(default: tuple[Path, EventAccumulator]) -> None:
    folder, events = default
    tag = "embedding_gradient/rows"
    assert steps(events, tag) == list(range(0, 360, 10))
    read_at = rows_read(folder)
    assert values(events, tag) == [read_at(step) for step in range(0, 360, 10)]
    assert max(values(events, tag)) < 65


def test_with_tied_embeddings_every_row_receives_gradient(finished_runs: Callable[..., Path]) -> None:
    folder = finished_runs(*TIED)
    events = read(folder)
    assert values(events, "embedding_gradient/rows") == [65] * 9
    assert steps(events, "embedding_gradient/rows") == list(range(9))
    assert values(events, "parameters/head") == [65]


# HParams


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


def test_without_a_dashboard_no_events_but_pictures_and_numbers(finished_runs: Callable[..., Path]) -> None:
    folder = finished_runs(*SMALL, "logger=none", "diagnostics=[heads]", "trainer.max_epochs=1")
    assert event_files(folder) == []
    assert [path.name for path in (folder / "figures").iterdir()] == ["heads_layer_0.png"]
    assert "val/loss" in (folder / "metrics.csv").read_text()


def test_a_run_that_goes_on_shows_the_curve_of_a_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in its second epoch after some numbers beyond the checkpoint, then started again."""
    folder = tmp_path / "run"
    overrides = (*SMALL, "diagnostics=[position_table,parameters]")
    real = TrainingModule.training_step

    def stop(self: TrainingModule, batch: Any, batch_idx: int) -> Any:
        if self.trainer.global_step == 5:
            raise KeyboardInterrupt
        return real(self, batch, batch_idx)

    monkeypatch.setattr(TrainingModule, "training_step", stop)
    with pytest.raises(SystemExit):
        train(folder, *overrides)
    monkeypatch.setattr(TrainingModule, "training_step", real)
    train(folder, *overrides, "resume=auto")
    events = read(folder)
    # The step of the checkpoint may be told twice, alike; no curve goes back.
    assert steps(events, "train/loss") == sorted(steps(events, "train/loss"))
    assert steps(events, "val/loss") == [0, 3, 6, 9]
    assert steps(events, "positions/table") == [0, 3, 6, 9]
    assert steps(events, "parameters/total") == [0]
    assert {path.parent for path in event_files(folder)} == {folder}
    assert session(events)["session_end_info"].session_end_info.status == api_pb2.STATUS_SUCCESS
    whole = read(train(tmp_path / "whole", *overrides))
    told, wanted = ({(event.step, event.value) for event in one.Scalars("train/loss")} for one in (events, whole))
    assert told == wanted
    assert {step for step, _ in wanted} == set(range(9))
    assert text(events, "config")


# The real server


class Server:
    """``tensorboard --logdir ...`` on this machine only."""

    def __init__(self, logdir: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = (logdir.parent / "server.log").open("w+")
        command = ["--logdir", str(logdir), "--host", "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", *command], stdout=self.log, stderr=self.log
        )

    def fetch(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/data/plugin/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bytes(answer.read())

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return json.loads(self.fetch(path, body))

    def wait_for(self, path: str, ready: Callable[[Any], bool]) -> Any:
        """Ask until the answer is there; the server reads its files in the background."""
        deadline = time.monotonic() + 60
        answer = None
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the server ended: {self.log.name}"
            try:
                answer = self.ask(path)
            except OSError:
                answer = None
            if answer is not None and ready(answer):
                return answer
            time.sleep(0.1)
        raise AssertionError(f"{path} never got ready: {answer}")

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


@pytest.fixture
def server(finished_runs: Callable[..., Path], tmp_path: Path) -> Iterator[Server]:
    for name, overrides in (("one", ()), ("two", TIED)):
        shutil.copytree(finished_runs(*overrides), tmp_path / "outputs" / "runs" / name)
    server = Server(tmp_path / "outputs")
    yield server
    server.close()
    assert server.process.returncode is not None


@pytest.mark.process
def test_tensorboard_itself_lists_numbers_pictures_and_sessions(
    server: Server, finished_runs: Callable[..., Path]
) -> None:
    runs = ["runs/one", "runs/two"]
    scalars = server.wait_for("scalars/tags", lambda tags: all("train/loss" in tags.get(run, {}) for run in runs))
    assert sorted(scalars) == runs, "a run that is none"
    wanted = {"train/loss", "val/loss", "val/accuracy", "val/exact_match", "learning_rate"}
    wanted |= {f"parameters/{part}" for part in PARTS} | {f"neighbour_similarity/offset_{k}" for k in range(1, 9)}
    assert wanted <= scalars["runs/one"].keys()
    points = server.ask("scalars/scalars?run=runs/one&tag=val/loss")
    assert [point[1] for point in points] == EPOCHS

    images = server.wait_for("images/tags", lambda tags: tags.get("runs/one", {}).keys() >= IMAGES)
    assert set(images["runs/one"]) == IMAGES
    listed = server.ask(f"images/images?run=runs/one&tag={urllib.parse.quote('heads/layer_0')}&sample=0")
    assert [image["step"] for image in listed] == EPOCHS
    picture = server.fetch(f"images/individualImage?{listed[-1]['query']}")
    assert picture == (finished_runs() / "figures" / "heads_layer_0.png").read_bytes()

    texts = server.ask("text/tags")
    assert {"config/text_summary", "parameters/text_summary"} <= set(texts["runs/one"])

    described = server.ask("hparams/experiment", {"experimentName": ""})
    types = {info["name"]: info["type"] for info in described["hparamInfos"]}
    assert types["model.d_model"] == "DATA_TYPE_FLOAT64"
    assert types["pos"] == "DATA_TYPE_STRING"
    assert types["model.tie_embeddings"] == "DATA_TYPE_BOOL"
    assert {"val/loss", "val/accuracy", "val/exact_match"} <= {info["name"]["tag"] for info in described["metricInfos"]}
    statuses = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
    question = {"experimentName": "", "allowedStatuses": statuses, "colParams": [], "startIndex": 0, "sliceSize": 10}
    groups = server.ask("hparams/session_groups", question)["sessionGroups"]
    sessions = {group["sessions"][0]["name"]: group for group in groups}
    assert sorted(sessions) == runs
    for name, tied in (("runs/one", False), ("runs/two", True)):
        group = sessions[name]
        assert group["sessions"][0]["status"] == "STATUS_SUCCESS"
        assert group["hparams"]["model.d_model"] == 32
        assert group["hparams"]["model.tie_embeddings"] is tied
        shown = {value["name"]["tag"]: value["value"] for value in group["metricValues"]}
        last = server.ask(f"scalars/scalars?run={name}&tag=val/loss")[-1][2]
        assert shown["val/loss"] == pytest.approx(last)


@pytest.mark.parametrize(
    ("brief", "pictures", "seen"),
    [(False, "auto", [0, 3, 6, 9]), (True, "auto", [0, 9]), (True, "all", [0, 3, 6, 9]), (False, "ends", [0, 9])],
)
def test_one_job_of_many_shows_its_first_and_its_last_pictures(
    brief: bool, pictures: str, seen: list[int], tmp_path: Path
):
    config = compose(*SMALL, "trainer.max_epochs=3", "diagnostics=[position_table]", f"logger.pictures={pictures}")
    run(config, tmp_path / "run", brief=brief)
    assert steps(read(tmp_path / "run"), "positions/table") == seen
