"""Writes the TensorBoard events of one run."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from poslab.runs.events import forget_session
from poslab.runs.names import EVENTS
from poslab.runs.result import Status

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class RunTensorBoard:
    """One event stream in the run's folder, open until the run closes it.

    Lightning's logger closes its writer at the end of ``fit``; later events would go to a second file.

    Args:
        folder: of the run.
        resume_step: step of the checkpoint that the run resumes from in this folder; None for a new stream.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        _use_quick_checksums()
        self.folder = folder
        self.resume_step = resume_step
        if resume_step is not None:
            forget_session(folder)
        # TensorBoard reads a run's files in the order of their names, which contain the time. If the clock has been set
        # back, create the next file here with a later time in its name.
        if (newest := max(map(_begun, folder.glob(EVENTS)), default=0)) >= int(time.time()):
            with _clock_at(newest + 1):
                _ = self.experiment

    @cached_property
    def experiment(self) -> "SummaryWriter":
        """Torch's writer; it creates its file on first use."""
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard hides what was logged after the checkpoint: those steps are logged again.
        purge_step = None if self.resume_step is None else self.resume_step + 1
        return SummaryWriter(log_dir=str(self.folder), purge_step=purge_step, flush_secs=10)

    def save(self) -> None:
        """Flush the events to the file."""
        self.experiment.flush()

    def replay(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Log the rows of the run that this run was started from."""
        for step in sorted(rows):
            self.log_metrics(rows[step], step)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log numbers of one step in one event; torch's writer would write an event for each number."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
        self._add_summary(Summary(value=values), step)

    def log_png(self, tag: str, png: bytes, step: int) -> None:
        """Log a PNG picture without encoding it again."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))  # fields of the PNG header
        image = Summary.Image(encoded_image_string=png, width=width, height=height, colorspace=4)
        self._add_summary(Summary(value=[Summary.Value(tag=tag, image=image)]), step)

    def log_markdown(self, tag: str, text: str, step: int) -> None:
        """Log a text, which TensorBoard renders as Markdown."""
        self.experiment.add_text(tag, text, step)

    def log_curve(self, tag: str, curve: Mapping[int, float]) -> None:
        """Log a curve whose x axis is not the training step; each key of ``curve`` is logged as the step.

        Only for a completed run: when a run is resumed, events are hidden by training step, so that the curve would be
        drawn twice.
        """
        for at, value in curve.items():
            self.experiment.add_scalar(tag, value, at)

    def log_session(self, hparams: Mapping[str, Any], metrics: Mapping[str, float], status: Status) -> None:
        """Add the run to the HParams tab with its final metrics.

        Args:
            hparams: flat name to number, text or truth value.
            metrics: tags of logged scalars; the tab shows their last values.
            status: any other than ``completed`` is shown as failed.
        """
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.plugins.hparams import api_pb2, metadata
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

        # Torch's add_hparams always writes the status success, and truth values as numbers.
        start, columns = SessionStartInfo(), []
        for name, value in hparams.items():
            if isinstance(value, bool):
                start.hparams[name].bool_value, kind = value, api_pb2.DATA_TYPE_BOOL
            elif isinstance(value, str):
                start.hparams[name].string_value, kind = value, api_pb2.DATA_TYPE_STRING
            else:
                start.hparams[name].number_value, kind = value, api_pb2.DATA_TYPE_FLOAT64
            columns.append(api_pb2.HParamInfo(name=name, type=kind))
        shown = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag)) for tag in metrics]
        end = SessionEndInfo(status=api_pb2.STATUS_SUCCESS if status == "completed" else api_pb2.STATUS_FAILURE)
        parts: dict[str, dict[str, Any]] = {
            metadata.EXPERIMENT_TAG: {"experiment": api_pb2.Experiment(hparam_infos=columns, metric_infos=shown)},
            metadata.SESSION_START_INFO_TAG: {"session_start_info": start},
            metadata.SESSION_END_INFO_TAG: {"session_end_info": end},
        }
        for tag, part in parts.items():
            content = HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **part).SerializeToString()
            plugin = SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=content)
            value = Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin))
            self._add_summary(Summary(value=[value]), None)

    def close(self) -> None:
        """Close the stream."""
        self.experiment.close()

    def _add_summary(self, summary: Any, step: int | None) -> None:
        self.experiment._get_file_writer().add_summary(summary, step)


def _use_quick_checksums() -> None:
    """Have TensorBoard compute checksums with a C library, because its own Python code is slow for pictures."""
    import google_crc32c
    from tensorboard.compat.tensorflow_stub import pywrap_tensorflow

    pywrap_tensorflow.crc32c = google_crc32c.value


def _begun(path: Path) -> int:
    """The time in the name of an event file, in seconds; 0 if the name has none."""
    text = path.name.removeprefix(EVENTS.removesuffix("*")).partition(".")[0]
    return int(text) if text.isdecimal() else 0


@contextmanager
def _clock_at(seconds: int) -> Iterator[None]:
    """Set the time that TensorBoard puts into the name of a new event file."""
    from tensorboard.summary.writer import event_file_writer

    try:
        event_file_writer.time = SimpleNamespace(time=lambda: seconds)
        yield
    finally:
        event_file_writer.time = time
