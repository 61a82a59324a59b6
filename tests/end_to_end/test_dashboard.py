"""What a dashboard shows of a run: every tag, read back from the files."""

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2

from poslab.build import build_task
from poslab.config.schema import checked
from poslab.data.stream import BatchStream
from poslab.experiment.run import run
from poslab.training.module import TrainingModule
from support.configs import compose
from support.event_files import EPOCHS, IMAGES, PARTS, event_files, read, session, steps, text, values
from support.runs import SMALL, TIED, train


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


def test_training_numbers_are_shown_every_ten_updates_and_at_the_last(default: tuple[Path, EventAccumulator]) -> None:
    _, events = default
    for tag in ("train/loss", "train/loss_mean", "learning_rate"):
        assert steps(events, tag) == [*range(0, 360, 10), 359], tag
    assert values(events, "learning_rate") == pytest.approx([0.005] * 37)
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


def rows_read(folder: Path) -> Callable[[int], int]:
    """How many different tokens the batch of a step reads, from the batch made again."""
    stored = yaml.safe_load((folder / "config.yaml").read_text())
    task = build_task(checked(compose()))
    stream = BatchStream(task, stored["seed"], "train", stored["data"]["batch_size"], task.vocab_size)
    return lambda step: len(torch.unique(stream.batch(step).tokens))


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
