"""TensorBoard's events of one run."""

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
    """One event stream in the run's own folder, open until the run itself closes it.

    Lightning's logger closes its writer when ``fit`` ends, and anything written later would open a second file.

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
        # TensorBoard reads a run's files in the order of their names, which hold the time. If the clock has been set
        # back, the next file is made now, with a later time in its name.
        if (newest := max(map(_begun, folder.glob(EVENTS)), default=0)) >= int(time.time()):
            with _clock_at(newest + 1):
                _ = self.experiment

    @cached_property
    def experiment(self) -> "SummaryWriter":
        """Torch's writer; its file is made on first use."""
        from torch.utils.tensorboard import SummaryWriter

        # What an earlier start wrote after its checkpoint is hidden: those steps come again.
        purge_step = None if self.resume_step is None else self.resume_step + 1
        return SummaryWriter(log_dir=str(self.folder), purge_step=purge_step, flush_secs=10)

    def save(self) -> None:
        """Flush the events to the file."""
        self.experiment.flush()

    def replay(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Show what the run that this one resumes from had logged by step."""
        for step in sorted(rows):
            self.log_metrics(rows[step], step)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Show numbers of one step, in one event: torch's writer makes one for each and looks at every name again."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
        self._add_summary(Summary(value=values), step)

    def log_png(self, tag: str, png: bytes, step: int) -> None:
        """Show an encoded picture as it is."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))  # the PNG header's own fields
        image = Summary.Image(encoded_image_string=png, width=width, height=height, colorspace=4)
        self._add_summary(Summary(value=[Summary.Value(tag=tag, image=image)]), step)

    def log_markdown(self, tag: str, text: str, step: int) -> None:
        """Show a text; TensorBoard renders Markdown."""
        self.experiment.add_text(tag, text, step)

    def log_curve(self, tag: str, curve: Mapping[int, float]) -> None:
        """Show a number against something that is no training step: a point's step is where it stands.

        Only for a run that is complete. What a later start of the run hides goes by training steps, and a curve that
        was shown twice would run back on itself.
        """
        for at, value in curve.items():
            self.experiment.add_scalar(tag, value, at)

    def log_session(self, hparams: Mapping[str, Any], metrics: Mapping[str, float], status: Status) -> None:
        """Put the run into the HParams tab, in its own folder, with the metrics it ended with.

        Args:
            hparams: flat name to number, text or truth value.
            metrics: tags of scalars that the run logged; the tab shows their last value.
            status: a run that did not complete is shown as failed.
        """
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.plugins.hparams import api_pb2, metadata
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

        # Not torch's own writer: its end mark always says success, and its truth values are numbers.
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
        """End the stream."""
        self.experiment.close()

    def _add_summary(self, summary: Any, step: int | None) -> None:
        self.experiment._get_file_writer().add_summary(summary, step)


def _use_quick_checksums() -> None:
    """Have TensorBoard take the checksum of what it writes by a C library: its own way, in Python, takes 0.2 us a byte.

    The number is the same, but for the six pictures of a look the other way takes a tenth of an epoch.
    """
    import google_crc32c
    from tensorboard.compat.tensorflow_stub import pywrap_tensorflow

    pywrap_tensorflow.crc32c = google_crc32c.value


def _begun(path: Path) -> int:
    """When an event file was begun, in seconds, as its name says; 0 where it says nothing."""
    text = path.name.removeprefix(EVENTS.removesuffix("*")).partition(".")[0]
    return int(text) if text.isdecimal() else 0


@contextmanager
def _clock_at(seconds: int) -> Iterator[None]:
    """The time that an event file is named by."""
    from tensorboard.summary.writer import event_file_writer

    try:
        event_file_writer.time = SimpleNamespace(time=lambda: seconds)
        yield
    finally:
        event_file_writer.time = time
