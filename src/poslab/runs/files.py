"""The open files of one run: its numbers, its TensorBoard events and its result."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError, described
from poslab.runs.checkpoint import Saved
from poslab.runs.folder import RunFolder
from poslab.runs.hparams import config_text, hparams
from poslab.runs.metrics import SIMILARITY
from poslab.runs.names import COPIES, METRICS_FILE
from poslab.runs.result import Result, by_length
from poslab.runs.resume import Start
from poslab.runs.table import NOT_A_TABLE, MetricsTable
from poslab.runs.tensorboard import RunTensorBoard
from poslab.system.files import MISSING, read_file
from poslab.system.ranks import is_rank_zero

# The numbers in the HParams tab.
IN_HPARAMS = (
    "val/loss",
    "val/accuracy",
    "val/exact_match",
    "train/loss",
    "parameters/total",
    SIMILARITY,
)

Files = TypeVar("Files", bound="RunFiles")


@dataclass(kw_only=True, eq=False)
class RunFiles:
    """The files of one run.

    Attributes:
        job: the run's configuration.
        overrides: as typed.
        folder: where the files are.
        table: ``metrics.csv``.
        board: TensorBoard's events; None with ``logger=none`` and on ranks above 0.
    """

    job: TrainConfig
    overrides: list[str]
    folder: RunFolder
    table: MetricsTable
    board: RunTensorBoard | None

    @property
    def loggers(self) -> list[Any]:
        return [self.table] if self.board is None else [self.board, self.table]

    @classmethod
    def open(
        cls: type[Files],
        job: TrainConfig,
        overrides: list[str],
        folder: RunFolder,
        start: Start,
        seed_folder: str | None = None,
    ) -> Files:
        """Open the files of a claimed folder; after a resume they contain what was logged up to the checkpoint.

        Args:
            job: the run's configuration.
            overrides: as typed.
            folder: of the run.
            start: where the run begins.
            seed_folder: the name of a replica's folder; None for a run with one seed.
        """
        table, board = MetricsTable(folder.path), None
        if start.saved is not None:
            inside = "" if seed_folder is None else f"{COPIES}/{seed_folder}/"
            restore_table(table, start, start.saved, f"{inside}{METRICS_FILE}", job.trainer.log_every_n_steps)
        if job.logger.tensorboard and folder.writes:
            board = RunTensorBoard(folder.path, start.step_here)
            rebuilt = folder.path in start.without_curves
            if start.elsewhere or rebuilt:
                board.replay(table.rows)
            if start.step_here is None or rebuilt:
                board.log_markdown("config", config_text(job), 0)
        return cls(job=job, overrides=overrides, folder=folder, table=table, board=board)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers of one step."""
        for logger in self.loggers:
            logger.log_metrics(values, step)

    def save(self) -> str:
        """Write everything that has been logged so far; returns the text of ``metrics.csv``."""
        if not self.folder.writes:
            return ""
        if self.board is not None:
            self.board.save()
        return self.table.save()

    def finish(self, result: Result) -> None:
        """Write all files, for any status; if one cannot be written, write the others.

        The status is written last: a run that is killed before that is not complete and can be resumed.

        Raises:
            OSError: the first error, raised after all files were tried.
        """
        # On the disk before the status that says that nothing is left to do.
        steps: list[Callable[[], object]] = [partial(self.table.save, durable=True)]
        if self.board is not None:
            last = self.table.last()
            shown = {name: value for name, value in result.metrics.items() if name in last and name in IN_HPARAMS}
            if result.status == "completed":
                curves = by_length(result.metrics).items()
                steps += [partial(self.board.log_curve, f"length_curve/{score}", curve) for score, curve in curves]
            steps += [partial(self.board.log_session, hparams(self.job), shown, result.status), self.board.close]
        failures = []
        for step in steps:
            try:
                step()
            except OSError as error:
                failures.append(error)
        if failures and result.status == "completed":
            result = replace(result, status="failed", error=described(failures[0]))
        try:
            self.folder.finish(result)
        except OSError as error:
            failures.append(error)
            if result.status == "completed":
                # On a full disk the status alone may fit.
                with suppress(OSError):
                    self.folder.finish(replace(result, status="failed", error=described(error)))
        if failures:
            raise failures[0]


def restore_table(table: MetricsTable, start: Start, saved: Saved, name: str, log_every_n_steps: int) -> None:
    """Give a table the rows up to the checkpoint: from the checkpoint, or from the files beside an older one.

    Args:
        table: of the run or of a replica.
        start: where the run begins.
        saved: the checkpoint.
        name: path of the file in the run folder.
        log_every_n_steps: as in the run's settings.

    Raises:
        ConfigError: the rows of this run are lost.
    """
    if saved.tables is not None:
        table.restore(start.step, saved.tables[name])
        if not start.elsewhere and is_rank_zero():
            table.repair(start.step)
        return
    path = table.path if start.origin is None else start.origin / name
    lost = f"{path} is missing or damaged, and {saved.path.name}, of an older version, does not contain its numbers"
    try:
        table.restore(start.step, read_file(path).decode())
    except MISSING as error:
        if start.elsewhere:
            return
        raise ConfigError(f"{lost}; start the run again in a new folder") from error
    except NOT_A_TABLE as error:
        raise error if isinstance(error, ConfigError) else ConfigError(f"{lost}; mend the file") from error
    if not start.elsewhere and (0 not in table.rows or max(table.rows) < start.step - log_every_n_steps):
        raise ConfigError(f"{lost}; start the run again in a new folder")
