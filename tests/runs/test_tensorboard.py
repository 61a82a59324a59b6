"""The event stream of a run."""

import io
from pathlib import Path

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
