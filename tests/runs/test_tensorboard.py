"""The table of every number, and the one event stream of a run."""

import csv
import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from poslab.config.schema import checked
from poslab.runs.files import RunFiles
from poslab.runs.folder import RunFolder
from poslab.runs.table import MetricsTable
from poslab.runs.tensorboard import RunTensorBoard
from support.configs import compose


def rows_of(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Column names and rows of a table as any program would read them."""
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    return list(reader.fieldnames or []), rows


def a_table(folder: Path) -> MetricsTable:
    table = MetricsTable(folder)
    table.log_metrics({"val/loss": 4.0, "val/accuracy": 0.1}, step=0)
    table.log_metrics({"train/loss": 3.5}, step=0)
    table.log_metrics({"train/loss": 1.25}, step=10)
    table.log_metrics({"val/loss": 1.0}, step=120)
    table.log_metrics({"train/loss": 2.5}, step=5)
    return table


def test_a_step_is_one_row_whatever_the_order_of_the_calls(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    table.save()
    names, rows = rows_of(tmp_path / "metrics.csv")
    assert names == ["step", "train/loss", "val/accuracy", "val/loss"]
    assert [row["step"] for row in rows] == ["0", "5", "10", "120"]
    assert rows[0] == {"step": "0", "train/loss": "3.5", "val/accuracy": "0.1", "val/loss": "4.0"}
    assert rows[1] == {"step": "5", "train/loss": "2.5", "val/accuracy": "", "val/loss": ""}


def test_numbers_come_back_exactly(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path)
    value = 0.1 + 0.2
    table.log_metrics({"a": value, "b": 1e-300}, step=1)
    table.save()
    _, rows = rows_of(tmp_path / "metrics.csv")
    assert float(rows[0]["a"]) == value
    assert float(rows[0]["b"]) == 1e-300


def test_a_value_that_is_logged_again_replaces_the_one_at_its_step(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path)
    table.log_metrics({"a": 1.0}, step=3)
    table.log_metrics({"a": 2.0}, step=3)
    assert table.column("a") == [2.0]


def test_first_last_and_column(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    assert table.first() == {"val/loss": 4.0, "val/accuracy": 0.1, "train/loss": 3.5}
    assert table.last() == {"val/loss": 1.0, "val/accuracy": 0.1, "train/loss": 1.25}
    assert table.column("train/loss") == [3.5, 2.5, 1.25]
    assert table.column("val/loss") == [4.0, 1.0]
    assert table.column("nothing") == []


def test_an_empty_table_is_a_header(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path)
    table.save()
    assert (tmp_path / "metrics.csv").read_bytes() == b"step\n"
    assert table.first() == table.last() == {}


def test_lines_end_the_same_way_on_every_system(tmp_path: Path) -> None:
    a_table(tmp_path).save()
    content = (tmp_path / "metrics.csv").read_bytes()
    assert b"\r" not in content
    assert content.endswith(b"\n")


@pytest.mark.parametrize("what", ["write", "rename"])
def test_a_table_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    table = a_table(tmp_path)
    table.save()
    before = (tmp_path / "metrics.csv").read_bytes()
    table.log_metrics({"val/loss": 0.5}, step=240)

    def half(path: Path, content: bytes) -> int:
        with open(path, "wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        if what == "write":
            patch.setattr(Path, "write_bytes", half)
        else:
            patch.setattr(os, "replace", refuse)
        with pytest.raises(OSError, match=r"No space|Input/output"):
            table.save()
    assert (tmp_path / "metrics.csv").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"], "half a file was left"
    table.save()
    assert len(rows_of(tmp_path / "metrics.csv")[1]) == 5


def test_a_run_that_goes_on_takes_over_its_rows_up_to_the_checkpoint(tmp_path: Path) -> None:
    before = a_table(tmp_path)
    before.save()
    after = MetricsTable(tmp_path)
    after.restore(10)
    assert after.rows == {step: row for step, row in before.rows.items() if step <= 10}
    after.log_metrics({"val/loss": 0.75}, step=120)
    after.save()
    assert [row["val/loss"] for row in rows_of(tmp_path / "metrics.csv")[1]] == ["4.0", "", "", "0.75"]


def test_a_run_that_goes_on_without_a_table_starts_one(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path)
    table.restore(10)
    assert table.rows == {}


# TensorBoard


def accumulated(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0, "tensors": 0})
    events.Reload()
    return events


def a_png(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGBA", (width, height), "red").save(buffer, format="png")
    return buffer.getvalue()


def test_one_stream_in_the_folder_itself(tmp_path: Path) -> None:
    board = RunTensorBoard(tmp_path)
    board.log_metrics({"val/loss": 1.0}, step=0)
    board.save()
    board.log_metrics({"val/loss": 0.5}, step=7)
    board.log_session({"seed": 1}, {"val/loss": 0.5}, "completed")
    board.close()
    (only,) = list(tmp_path.iterdir())
    assert only.name.startswith("events.out.tfevents.")
    assert [(event.step, event.value) for event in accumulated(tmp_path).Scalars("val/loss")] == [(0, 1.0), (7, 0.5)]


def test_a_picture_is_shown_as_it_is(tmp_path: Path) -> None:
    board = RunTensorBoard(tmp_path)
    pngs = [a_png(300, 200), a_png(70000, 1)]
    for step, png in enumerate(pngs):
        board.log_png("heads/layer_0", png, step * 120)
    board.close()
    images = accumulated(tmp_path).Images("heads/layer_0")
    assert [image.step for image in images] == [0, 120]
    assert [image.encoded_image_string for image in images] == pngs
    assert [(image.width, image.height) for image in images] == [(300, 200), (70000, 1)]


def test_a_text_is_shown(tmp_path: Path) -> None:
    board = RunTensorBoard(tmp_path)
    board.log_markdown("parameters", "| a |\n|---|\n| 1 |", 0)
    board.close()
    (text,) = accumulated(tmp_path).Tensors("parameters/text_summary")
    assert text.step == 0
    assert text.tensor_proto.string_val == [b"| a |\n|---|\n| 1 |"]


def test_flushed_numbers_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    board = RunTensorBoard(tmp_path)
    board.log_metrics({"val/loss": 1.0}, step=0)
    board.save()
    assert len(accumulated(tmp_path).Scalars("val/loss")) == 1
    board.close()


def test_what_was_shown_beyond_the_checkpoint_is_hidden_when_a_run_goes_on(tmp_path: Path) -> None:
    first = RunTensorBoard(tmp_path)
    for step in (0, 3, 6):
        first.log_metrics({"val/loss": 1.0}, step=step)
        first.log_png("heads/layer_0", a_png(2, 2), step)
    first.close()
    second = RunTensorBoard(tmp_path, resume_step=3)
    second.log_metrics({"val/loss": 2.0}, step=6)
    second.close()
    events = accumulated(tmp_path)
    assert [(event.step, event.value) for event in events.Scalars("val/loss")] == [(0, 1.0), (3, 1.0), (6, 2.0)]
    assert [image.step for image in events.Images("heads/layer_0")] == [0, 3]


def test_a_run_that_failed_and_went_on_to_its_end_is_no_failure(tmp_path: Path) -> None:
    """Of two records in one run, TensorBoard shows the first."""
    first = RunTensorBoard(tmp_path)
    first.log_metrics({"val/loss": 1.0}, step=3)
    first.log_session({"seed": 1}, {"val/loss": 1.0}, "interrupted")
    first.close()
    second = RunTensorBoard(tmp_path, resume_step=3)
    second.log_session({"seed": 1}, {"val/loss": 1.0}, "completed")
    second.close()
    events = accumulated(tmp_path)
    content = events.PluginTagToContent("hparams")["_hparams_/session_end_info"]
    assert HParamsPluginData.FromString(content).session_end_info.status == api_pb2.STATUS_SUCCESS
    assert len(events.Scalars("val/loss")) == 1


def test_a_rank_above_0_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank saves its files with every checkpoint; those above 0 have logged nothing."""
    job = checked(compose("logger=none"))
    files = [
        RunFiles(job=job, overrides=[], folder=RunFolder(tmp_path), table=MetricsTable(tmp_path), board=None)
        for _ in range(2)
    ]
    files[0].log({"val/loss": 1.5}, 3)
    files[0].save()
    monkeypatch.setenv("LOCAL_RANK", "1")
    files[1].save()
    assert (tmp_path / "metrics.csv").read_text() == "step,val/loss\n3,1.5\n"
