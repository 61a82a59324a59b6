"""How a run ends: its status, error, signals and ``result.json``, from the claim of its folder on."""

import logging
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

import lightning
import torch
from torch import Tensor

from poslab.config.schema import TrainConfig
from poslab.data.module import TaskData
from poslab.diagnostics import inspecting
from poslab.errors import ConfigError, DivergedError, LostFolderError, LostRankError, PrunedError, described
from poslab.evaluation.metrics import neighbour_cosine_curve
from poslab.experiment.report import brief_report, final_report
from poslab.model import parameters_by_part
from poslab.runs.checkpoint import newest_checkpoint
from poslab.runs.files import RunFiles
from poslab.runs.folder import RunFolder
from poslab.runs.learning import learning_of
from poslab.runs.metrics import COMPLETED_REPLICAS, MONITORED, SIMILARITY, SIMILARITY_ROWS
from poslab.runs.names import CONFIG_FILE, COPIES
from poslab.runs.result import Result, Status
from poslab.runs.resume import Start, claim, find_start, restore_files
from poslab.runs.settings import stored_settings
from poslab.system.devices import device_name
from poslab.system.files import DAMAGED, put_aside, read_file
from poslab.system.shell import shown_path
from poslab.system.signals import DeferredSignals, as_stopped
from poslab.system.threads import available_cores
from poslab.tasks import Task
from poslab.training.module import TrainingModule
from poslab.training.replicas import Replica, Replicas

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""How long a job of a sweep waits for the lock of its folder."""


class RunRecord:
    """A run from its claimed folder to its ``result.json``.

    Args:
        job: its configuration.
        folder: claimed.
        start: where it begins.
        overrides: what was typed.
        brief: one of many jobs: report the end in one line.
        started: `time.perf_counter` at the start of the job.

    Attributes:
        replicas: the files of each model; set by `open`.
        signals: those that ask the run to stop.
    """

    replicas: Replicas

    def __init__(
        self, job: TrainConfig, folder: RunFolder, start: Start, overrides: Sequence[str], brief: bool, started: float
    ) -> None:
        self.job, self.folder, self.start, self.overrides = job, folder, start, [*overrides]
        self.brief, self.started = brief, started
        self.signals = DeferredSignals()
        self.task: Task | None = None
        self.module: TrainingModule | None = None
        self.trainer: lightning.Trainer | None = None
        self.result: Result | None = None
        self._opened = False

    def claim(self) -> None:
        """Make the folder this run's; from then on the run leaves a status in it, however it ends.

        Raises:
            ConfigError: the folder cannot be this run's.
        """
        if self.folder.writes and not self.start.claimed:
            self.folder.check_usable()
            self.folder.lock.acquire()
        claim(self.folder, self.start, self.job, self.overrides)

    def open(self) -> None:
        """Open the files of the run and of each replica; with one seed they are the same."""
        self.start = restore_files(self.folder, self.start)
        if self.job.seeds == 1:
            only = Replica.open(self.job, self.overrides, self.folder, self.start)
            self.replicas = Replicas([only], only)
        else:
            means = RunFiles.open(self.job, self.overrides, self.folder, self.start)
            seeds = range(self.job.seed, self.job.seed + self.job.seeds)
            self.replicas = Replicas([self._open_replica(seed) for seed in seeds], means)
        self._opened = True

    def _open_replica(self, seed: int) -> Replica:
        job = replace(self.job, seed=seed, seeds=1)
        typed = [one for one in self.overrides if one.lstrip("+").partition("=")[0] not in ("seed", "seeds")]
        typed.append(f"seed={seed}")
        folder = RunFolder(self.folder.path / COPIES / f"seed{seed}")
        claimed = folder.taken()
        damaged: list[Path] = []
        if claimed and folder.writes and self.start.claimed:
            claimed, (_, damaged) = has_configuration(folder), newest_checkpoint(folder)
        start = self.start._replace(claimed=claimed, seconds=self.start.seconds / self.job.seeds, damaged=damaged)
        claim(folder, start, job, typed)
        return Replica.open(job, typed, folder, start, seed_folder=f"seed{seed}")

    def watch(self, task: Task, module: TrainingModule, trainer: lightning.Trainer) -> None:
        """Take the numbers of the result from these, and say what the run is."""
        self.task, self.module, self.trainer = task, module, trainer
        if not self.folder.writes:
            return
        log.info("run    %s", shown_path(self.folder.path))
        if self.brief and self.overrides:
            log.info("typed  %s", " ".join(self.overrides))
        first, n = self.job.seed, self.job.seeds
        seeds = str(first) if n == 1 else f"{first} to {first + n - 1} at once"
        log.info("seed   %s, threads %d of %d", seeds, torch.get_num_threads(), available_cores())
        note = module.learner.model_of(0).note
        if note and not self.brief:
            log.info("note   %s", note)
        if self.job.init_from is not None:
            log.info("start  with the weights of %s", shown_path(Path(self.job.init_from)))
        if self.start.checkpoint is not None:
            log.info("resume from %s, step %d", self.start.checkpoint.name, self.start.step)
        elif self.job.resume and not self.brief:
            # Every job of a sweep has this setting; a person who types it expects a resume.
            log.info("resume=auto found no checkpoint there: the run starts at step 0")

    def write(self, status: Status, error: BaseException | None) -> None:
        """Leave the status and all numbers in the folder, and report them."""
        seconds = round(self.start.seconds + time.perf_counter() - self.started, 3)
        text = None if error is None else described(error)
        report = brief_report if self.brief else final_report
        if not self._opened:
            self.result = Result(
                status=status, error=text, overrides=self.overrides, seed=self.job.seed, wall_seconds=seconds
            )
            self.folder.finish(self.result)
            log.info("%s", report(self.result, self.folder, dashboard=False))
            return
        own = [self._result_of(index, status, text, seconds) for index in range(len(self.replicas))]
        means = self.replicas.means
        for replica, result in zip(self.replicas, own, strict=True):
            if replica is not means:
                replica.finish(result)
        self.result = own[0] if means is self.replicas[0] else self._mean_result(own, status, text, seconds)
        try:
            means.finish(self.result)
        except OSError as unwritten:
            self.result = replace(self.result, status="failed", error=self.result.error or described(unwritten))
            raise
        finally:
            log.info("%s", report(self.result, self.folder, dashboard=means.board is not None))

    def check_complete(self) -> None:
        """Refuse to call a run complete that has not kept its numbers.

        Raises:
            ConfigError: the table of the run or of an active replica has no validation loss.
        """
        if self.module is None or not self.folder.writes:
            return
        kept = [self.replicas.means, *(self.replicas[index] for index in self.replicas.active())]
        for files in kept:
            if MONITORED not in files.table.last():
                raise ConfigError(f"{files.table.path} has no {MONITORED}; start the run again in a new folder")

    def lost_rank(self, reason: str) -> None:
        """Record that a rank is gone, for a rank 0 that waits for it and cannot come to its own end."""
        self.replicas.means.folder.finish(
            Result(
                status="failed",
                error=described(LostRankError(reason)),
                metrics=final_metrics(self.replicas.means, None),
                overrides=self.overrides,
                seed=self.job.seed,
            )
        )
        self.replicas.means.save()
        log.error("error: %s; the run has ended", reason)

    def conclude(self) -> float:
        """The last validation loss of a run that ended without an error.

        Raises:
            DivergedError: some replicas diverged.
        """
        if self.brief:
            # A signal that came when everything was done stops the sweep, not this job.
            self.signals.deliver()
        if self.job.seeds > 1 and self.replicas.diverged():
            raise DivergedError(self.result.error if self.result else "")
        assert self.module is not None
        # Only rank 0 has a table; and a run that was stopped after its last step has validated nothing this time.
        last = self.replicas.means.table.last()
        return last.get("val/loss", self.module.validation.get("val/loss", float("nan")))

    def _result_of(self, index: int, status: Status, error: str | None, seconds: float) -> Result:
        """The result of one replica, as a run of its own would have it."""
        replica, module, task = self.replicas[index], self.module, self.task
        model = None if module is None else module.learner.model_of(index)
        return Result(
            status="diverged" if replica.diverged else status,
            error=f"{DivergedError.__name__}: {replica.diverged}" if replica.diverged else error,
            metrics=final_metrics(
                replica, None if model is None or task is None else model.positions.trained_table(task.seq_len)
            ),
            validation=self._validation_rows(index) if status == "completed" and not replica.diverged else None,
            parameters={} if model is None else parameters_by_part(model.parts()),
            start=replica.start,
            learning=learning_of(replica.table.dated(), asdict(self.job)).stored() if replica.table.rows else None,
            batches_by_length={} if task is None else batches_by_length(replica.batches_by_seq_len, task),
            out_of_reach={} if self.trainer is None else out_of_reach(self.trainer, index),
            overrides=replica.overrides,
            seed=replica.seed,
            # Its share of the time that all replicas took together.
            wall_seconds=round(seconds / len(self.replicas), 3),
            device=None if self.trainer is None else device_name(self.trainer.strategy.root_device),
        )

    def _validation_rows(self, index: int) -> dict[str, float] | None:
        """What the validation rows of one replica have in common with the batches that it was trained on."""
        data = None if self.trainer is None else self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, TaskData) or self.trainer is None:
            return None
        return data.validation_rows(index, self.replicas[index].stopped or self.trainer.global_step)._asdict()

    def _mean_result(self, own: Sequence[Result], status: Status, error: str | None, seconds: float) -> Result:
        """The result of a run of several replicas: the means over those that ended as the run did."""
        counted = [one.metrics for one in own if one.status == status]
        names = dict.fromkeys(name for metrics in counted for name in metrics)
        means = {name: fmean(metrics[name] for metrics in counted if name in metrics) for name in names}
        means[COMPLETED_REPLICAS] = sum(one.status == "completed" for one in own)
        lost = self.replicas.diverged()
        if error is None and lost:
            each = "; ".join(f"seed {self.replicas[index].seed}: {self.replicas[index].diverged}" for index in lost)
            error = f"{len(lost)} of {len(own)} replicas diverged; {each}"
        return replace(
            own[0],
            status=status,
            error=error,
            metrics=means,
            start=mean_start(own),
            validation=None,
            learning=None,
            batches_by_length={},
            out_of_reach={} if self.trainer is None else out_of_reach(self.trainer),
            overrides=self.overrides,
            seed=self.job.seed,
            wall_seconds=seconds,
        )


@contextmanager
def recorded(
    job: TrainConfig, folder: RunFolder, overrides: Sequence[str], brief: bool = False, started: float | None = None
) -> Iterator[RunRecord | None]:
    """Claim or resume a folder and record how its run ends, however it ends; None if the run is complete already.

    A trial that a search pruned ends quietly; every other error goes on.

    Raises:
        ConfigError: the folder cannot be this run's.
        StoppedError: a signal stopped the run.
    """
    # The job of a sweep that was killed ends a few seconds after it.
    folder.lock.patience = PATIENCE_SECONDS if brief else 0.0
    with closing(folder.lock):
        try:
            start = find_start(job, folder)
        except ConfigError as refused:
            if brief:
                # Into the job's log: its folder may be another run's, which has a result already.
                log.info("refused %s", refused)
            raise
        if start is None:
            log.info("%s is complete already; nothing to do", folder.path)
            yield None
            return
        record = RunRecord(job, folder, start, overrides, brief, time.perf_counter() if started is None else started)
        status: Status = "completed"
        error: BaseException | None = None
        with record.signals:
            try:
                record.claim()
                record.open()
                yield record
                record.check_complete()
            except BaseException as raised:
                if folder.writes and not folder.claimed:
                    # The folder is another run's, or nothing can be written there.
                    if brief:
                        log.info("refused %s", described(raised))
                    raise
                status, error = _end_of(raised, folder)
                if error is not raised:
                    raise error from raised
                if not isinstance(error, PrunedError):
                    raise
            finally:
                if folder.claimed and not isinstance(error, LostFolderError):
                    record.write(status, error)


def _end_of(raised: BaseException, folder: RunFolder) -> tuple[Status, BaseException]:
    """The status of a run that an exception ended, and the error to record and raise."""
    if isinstance(raised, PrunedError):
        # No failure: the search does not need the rest of this job.
        return "pruned", raised
    if isinstance(raised, DivergedError):
        return "diverged", raised
    if isinstance(raised, (KeyboardInterrupt, SystemExit)):
        return "interrupted", as_stopped(raised)
    log.debug("the run failed", exc_info=True)
    return "failed", folder.lost() if folder.removed() else raised


def has_configuration(folder: RunFolder) -> bool:
    """Whether the configuration of a replica's folder is whole; a damaged one is put aside and can be written again.

    Raises:
        ConfigError: it cannot be read now.
    """
    path = folder.path / CONFIG_FILE
    read_file(path)
    try:
        stored_settings(folder.path)
    except ConfigError as error:
        log.warning("%s; it is kept as %s%s and written again", error, path.name, DAMAGED)
        put_aside(path)
        return False
    return True


def final_metrics(files: RunFiles, vectors: Tensor | None) -> dict[str, float]:
    """Last values, the losses at the start, the validation of the best weights, and how similar neighbours are.

    Args:
        files: of the run.
        vectors: rows of the position table that training uses, (n, D); None for a scheme without a table.
    """
    # A run that was started from a checkpoint without its numbers has not seen the untrained model.
    first, last = files.table.rows.get(0, {}), files.table.last()
    metrics = dict(last)
    metrics |= {f"start/{name}": first[name] for name in first if name.startswith("val/") or name == "train/loss"}
    step = files.table.best_step()
    best = {} if step is None else files.table.rows[step]
    metrics |= {f"best/{name}": value for name, value in best.items() if name.startswith("val/")}
    if vectors is not None and len(vectors) > 1:
        # Also without the diagnostic: it belongs to the answer.
        metrics[SIMILARITY] = neighbour_cosine_curve(vectors, max_offset=1)[0]
        metrics[SIMILARITY_ROWS] = float(len(vectors))
    # JSON has no NaN and no infinity; `status` and `error` say what happened.
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def mean_start(results: Sequence[Result]) -> dict[str, float | None]:
    """The means over the replicas; None where one has no such number."""
    found: dict[str, float | None] = {}
    for name in results[0].start:
        values = [value for one in results if (value := one.start.get(name)) is not None]
        found[name] = fmean(values) if len(values) == len(results) else None
    return found


def batches_by_length(by_seq_len: Counter[int], task: Task) -> dict[str, int]:
    """The batches of each length that the run was trained on."""
    met = {length: by_seq_len[task.seq_len_at(length)] for length in task.lengths}
    return {str(length): batches for length, batches in met.items() if batches}


def out_of_reach(trainer: lightning.Trainer, replica: int = 0) -> dict[str, str]:
    """What the diagnostics could not inspect, and why."""
    return {name: reason for one in inspecting(trainer, replica) for name, reason in one.out_of_reach.items()}
