"""Where numbers and pictures go: ``metrics.csv`` in every run, and TensorBoard."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger

from poslab.results import METRICS_FILE, Status, write_atomically


class MetricsTable(Logger):
    """Every logged scalar, one row a step, in ``metrics.csv``; also remembered, for ``result.json``.

    Lightning's own CSVLogger is no help here: it writes a line per call and one folder per version.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / METRICS_FILE
        self.rows: dict[int, dict[str, float]] = {}

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the configuration is a file of its own."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.rows.setdefault(int(step or 0), {}).update(metrics)

    def save(self) -> None:
        """Write the table; columns in order of their name."""
        names = sorted({name for row in self.rows.values() for name in row})
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, ["step", *names], lineterminator="\n")
        table.writeheader()
        table.writerows({"step": step, **self.rows[step]} for step in sorted(self.rows))
        write_atomically(self.path, text.getvalue().encode())

    def finalize(self, status: str) -> None:
        self.save()

    def go_on(self, step: int) -> None:
        """Take over the rows that an earlier start of this run wrote, up to ``step``."""
        if not self.path.exists():
            return
        with open(self.path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                at = int(row.pop("step"))
                if at <= step:
                    self.rows[at] = {name: float(value) for name, value in row.items() if value}

    def first(self) -> dict[str, float]:
        """The first value of every scalar."""
        return {name: value for step in sorted(self.rows, reverse=True) for name, value in self.rows[step].items()}

    def last(self) -> dict[str, float]:
        """The last value of every scalar."""
        return {name: value for step in sorted(self.rows) for name, value in self.rows[step].items()}

    def column(self, name: str) -> list[float]:
        """Every value of one scalar, by step."""
        return [self.rows[step][name] for step in sorted(self.rows) if name in self.rows[step]]


class RunTensorBoard(TensorBoardLogger):
    """One event stream in the run's own folder, open until the run itself closes it.

    Lightning closes the writer when ``fit`` ends, and anything written after that would open a second file.
    """

    def __init__(self, folder: Path, go_on_after: int | None = None) -> None:
        # Whatever an earlier start wrote beyond its checkpoint is hidden: it is about to happen again.
        purge: dict[str, Any] = {} if go_on_after is None else {"purge_step": go_on_after + 1}
        super().__init__(folder, name="", version="", default_hp_metric=False, flush_secs=10, **purge)

    def save(self) -> None:
        """Only flush: the configuration is in ``config.yaml``, not in a second ``hparams.yaml``."""
        self.experiment.flush()

    def finalize(self, status: str) -> None:
        self.save()

    def log_png(self, tag: str, png: bytes, step: int) -> None:
        """Show an encoded picture as it is."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))  # the PNG header's own fields
        image = Summary.Image(encoded_image_string=png, width=width, height=height, colorspace=4)
        self._add_summary(Summary(value=[Summary.Value(tag=tag, image=image)]), step)

    def log_markdown(self, tag: str, text: str, step: int) -> None:
        """Show a text; TensorBoard renders Markdown."""
        self.experiment.add_text(tag, text, step)

    def log_session(self, hparams: Mapping[str, Any], metrics: Mapping[str, float], status: Status) -> None:
        """Put the run into the HParams tab, in its own folder, with the metrics it ended with.

        Args:
            hparams: flat name to number, text or truth value.
            metrics: tags of scalars that the run logged; the tab shows their last value.
            status: a run that did not complete is shown as failed.
        """
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.plugins.hparams import api_pb2
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo
        from torch.utils.tensorboard.summary import hparams as torch_hparams

        experiment, start, _ = torch_hparams(dict(hparams), dict(metrics))
        # torch's own end mark always says success.
        code = api_pb2.STATUS_SUCCESS if status == "completed" else api_pb2.STATUS_FAILURE
        data = HParamsPluginData(session_end_info=SessionEndInfo(status=code), version=0)
        plugin = SummaryMetadata.PluginData(plugin_name="hparams", content=data.SerializeToString())
        end = Summary(
            value=[Summary.Value(tag="_hparams_/session_end_info", metadata=SummaryMetadata(plugin_data=plugin))]
        )
        for summary in (experiment, start, end):
            self._add_summary(summary, None)

    def close(self) -> None:
        """End the stream."""
        self.experiment.close()

    def _add_summary(self, summary: Any, step: int | None) -> None:
        self.experiment._get_file_writer().add_summary(summary, step)
