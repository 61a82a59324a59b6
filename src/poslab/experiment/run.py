"""One job, from a configuration to a finished run folder; `run` reads top to bottom."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from omegaconf import DictConfig

from poslab.build import build_model, build_task
from poslab.config.identity import model_settings
from poslab.config.schema import TrainConfig, checked
from poslab.data.bundle import BundleData
from poslab.data.module import TaskData
from poslab.diagnostics import looking
from poslab.errors import DivergedError, LostFolderError, LostRankError, PrunedError
from poslab.evaluation.metrics import neighbour_cosine_curve
from poslab.experiment.report import brief_report, final_report
from poslab.experiment.trainer import build_trainer, quieten
from poslab.model import LanguageModel, parameters_by_part
from poslab.pictures.gallery import close_gallery
from poslab.runs.checkpoint import run_folder_of
from poslab.runs.folder import RunFolder
from poslab.runs.hparams import config_text, hparams
from poslab.runs.result import Result, Status, by_length, stored_result
from poslab.runs.resume import Start, open_folder
from poslab.runs.table import MetricsTable
from poslab.runs.tensorboard import RunTensorBoard
from poslab.system.determinism import deterministic_algorithms
from poslab.system.devices import check_device, device_name
from poslab.system.ranks import is_second_rank
from poslab.system.shell import shown_path
from poslab.system.signals import Hold, as_stopped
from poslab.system.threads import available_cores, choose_threads
from poslab.tasks import Task
from poslab.training.bundle import BundleModule
from poslab.training.checkpoints import room_for
from poslab.training.module import CopyModule, TrainingModule
from poslab.training.ranks import local_ranks
from poslab.training.replicas import Copies, build_stack, open_copies

log = logging.getLogger(__name__)

SIMILARITY = "neighbour_similarity/offset_1"
# The numbers that the HParams tab compares runs by.
IN_HPARAMS = ("val/loss", "val/accuracy", "val/exact_match", "train/loss", "parameters/total", SIMILARITY)


def run(
    config: DictConfig,
    path: Path,
    overrides: Sequence[str] = (),
    brief: bool = False,
    callbacks: Sequence[Callback] = (),
) -> float:
    """Train one job and leave everything it found in its folder.

    Args:
        config: the composed configuration.
        path: the folder; made if it is not there, refused if it holds a run, unless ``resume=auto``.
        overrides: what was typed to get this configuration, for the record.
        brief: it is one of many: say the end in one line instead of a table, draw the first and the last pictures only.
        callbacks: called after the diagnostics and before a checkpoint is saved.

    Returns:
        the last validation loss.

    Raises:
        DivergedError: the loss became NaN or infinite; of a bundle, also where some copies completed.
        ConfigError: the configuration cannot be run.
        StoppedError: the run was stopped, with exit code 130 (Ctrl-C) or 143 (SIGTERM, SIGUSR1, SIGUSR2).
    """
    started = time.perf_counter()
    quieten()
    job = checked(config)
    with deterministic_algorithms(job.deterministic):
        return train(job, RunFolder(path), overrides, brief, started, callbacks)


def train(
    job: TrainConfig,
    folder: RunFolder,
    overrides: Sequence[str],
    brief: bool,
    started: float,
    callbacks: Sequence[Callback] = (),
) -> float:
    """`run`, of a configuration that has been checked."""
    start = open_folder(job, folder, overrides)
    if start is None:
        log.info("%s is complete already; nothing to do", folder.path)
        return float(stored_result(folder.path)["metrics"]["val/loss"])

    table = MetricsTable(folder.path)
    board = None
    if start.checkpoint is not None:
        table.go_on(start.step, run_folder_of(start.checkpoint) if start.elsewhere else None)
    if job.logger.tensorboard and not is_second_rank():
        board = RunTensorBoard(folder.path, go_on_after=start.step_here)
        if start.elsewhere:
            board.replay(table.rows)

    copies = open_copies(job, folder, start, overrides, table)

    model: LanguageModel | None = None
    module: TrainingModule | None = None
    trainer: lightning.Trainer | None = None
    device: str | None = None
    status: Status = "failed"
    error: BaseException | None = None
    hold = Hold()
    try:
        hold.begin()
        # Here too: a worker may see other devices than the process that checked the job.
        check_device(job.trainer.accelerator, job.trainer.devices)
        task = build_task(job)
        rows = job.data.batch_size * job.seeds
        here = job.trainer.devices
        rows = rows // (here * job.trainer.num_nodes)
        torch.set_num_threads(choose_threads(job.trainer.threads, rows, task.seq_len, job.model.d_model, here))
        torch.manual_seed(job.seed)
        data: TaskData | BundleData
        if copies is None:
            model = build_model(job, task)
            settings = model_settings(job)
            module = CopyModule(
                model, job.optimizer, job.trainer.log_every_n_steps, job.total_steps, settings, compile=job.compile
            )
            data = TaskData(task, job.data, job.seed, model.vocab_size)
        else:
            stack = build_stack(job, task)
            model = stack.copy_of(0)
            module = BundleModule(
                stack, copies, job.optimizer, job.trainer.log_every_n_steps, job.total_steps, compile=job.compile
            )
            seeds = [copy.seed for copy in copies]
            data = BundleData(task, job.data, seeds, model.vocab_size, one_shape=job.compile)
        if not is_second_rank():
            folder.check_writable(room_for(job, model))
        with local_ranks(
            folder.path, job.trainer.devices, job.trainer.strategy, partial(record_lost_rank, job, folder, table)
        ):
            trainer = build_trainer(job, folder, table, board, brief, copies, hold, start, callbacks)
            device = device_name(trainer.strategy.root_device)
            announce(job, folder, start, overrides if brief else None)
            if board is not None and (start.checkpoint is None or start.elsewhere):
                board.log_markdown("config", config_text(job), 0)
            trainer.fit(module, datamodule=data, ckpt_path=start.checkpoint, weights_only=True)
        close_gallery(trainer)
        status = "completed"
    except PrunedError as pruned:
        # No failure: the search wants no more of this job.
        status, error = "interrupted", pruned
    except DivergedError as diverged:
        status, error = "diverged", diverged
        raise
    except (KeyboardInterrupt, SystemExit) as stop:
        status, error = "interrupted", as_stopped(stop)
        if error is stop:
            raise
        raise error from stop
    except BaseException as failure:
        error = failure if folder.taken() else folder.lost()
        log.debug("the run failed", exc_info=True)
        if error is failure:
            raise
        raise error from failure
    finally:
        try:
            if not is_second_rank() and not isinstance(error, LostFolderError):
                result = Result(
                    status=status,
                    error=None if error is None else describe(error),
                    metrics=final_metrics(table, module.whole.model if isinstance(module, CopyModule) else model),
                    parameters={} if model is None else parameters_by_part(model.parts()),
                    batches_by_length=batches_by_length(module.batches_by_seq_len, task)
                    if isinstance(module, CopyModule)
                    else {},
                    out_of_reach={} if trainer is None else out_of_reach(trainer),
                    overrides=overrides,
                    seed=job.seed,
                    wall_seconds=round(start.seconds + time.perf_counter() - started, 3),
                    device=device,
                )
                if copies is not None:
                    result = finish_copies(copies, result, module, trainer)
                try:
                    finish(job, folder, table, board, result)
                except OSError as unwritten:
                    result = replace(result, status="failed", error=result.error or describe(unwritten))
                    raise
                finally:
                    report = brief_report if brief else final_report
                    log.info("%s", report(result, folder, dashboard=board is not None))
        finally:
            hold.end()
    if brief:
        # What came when everything was done stops the sweep, not this job.
        hold.deliver()
    if copies is not None and copies.lost():
        raise DivergedError(result.error)
    # The table is the first rank's; and a run that was stopped after its last step has trained nothing this time.
    assert trainer is not None
    return float(table.last().get("val/loss", trainer.callback_metrics.get("val/loss", math.nan)))


def describe(error: BaseException) -> str:
    """One line for ``result.json``: what kind of error, and what it says."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")


def record_lost_rank(job: TrainConfig, folder: RunFolder, table: MetricsTable, reason: str) -> None:
    """Say what is to be known of a run whose first rank waits for one that is gone and cannot say it itself."""
    lost = LostRankError(reason)
    overrides = stored_result(folder.path).get("overrides", ())
    folder.finish(
        Result(
            status="failed",
            error=describe(lost),
            metrics=final_metrics(table, None),
            overrides=overrides,
            seed=job.seed,
        )
    )
    table.save()
    log.error("error: %s; the run has ended", reason)


def announce(job: TrainConfig, folder: RunFolder, start: Start, typed: Sequence[str] | None = None) -> None:
    """The first lines of a run: what it is and where it goes; for one of many, what was typed to get it."""
    if is_second_rank():
        return
    log.info("run    %s", shown_path(folder.path))
    if typed:
        log.info("typed  %s", " ".join(typed))
    seeds = str(job.seed) if job.seeds == 1 else f"{job.seed} to {job.seed + job.seeds - 1} at once"
    log.info("seed   %s, threads %d of %d", seeds, torch.get_num_threads(), available_cores())
    if start.checkpoint is not None:
        log.info("resume from %s, step %d", start.checkpoint.name, start.step)
    elif job.resume and typed is None:
        # A sweep gives every job this setting; a person who gives it expects to go on.
        log.info("resume=auto found no checkpoint there: the run starts at step 0")


def final_metrics(table: MetricsTable, model: LanguageModel | None) -> dict[str, float]:
    """Last values, where the losses started, the best of each validation number, and how alike neighbours are."""
    first, last = table.first(), table.last()
    metrics = dict(last)
    metrics |= {f"start/{name}": first[name] for name in first if name.startswith("val/") or name == "train/loss"}
    for name in [name for name in last if name.startswith("val/")]:
        column = table.column(name)
        metrics[f"best/{name}"] = min(column) if name.endswith("loss") else max(column)
    vectors = None if model is None else model.positions.table()
    if vectors is not None and len(vectors) > 1:
        # Also without the diagnostic: it belongs to the answer.
        metrics[SIMILARITY] = neighbour_cosine_curve(vectors, max_offset=1)[0]
    # A number that is none has no place in JSON; `status` and `error` say what happened.
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def batches_by_length(by_seq_len: Counter[int], task: Task) -> dict[str, int]:
    """What the run was trained on, without the lengths that it never met."""
    met = {length: by_seq_len[task.seq_len_at(length)] for length in task.lengths}
    return {str(length): batches for length, batches in met.items() if batches}


def out_of_reach(trainer: lightning.Trainer, copy: int = 0) -> dict[str, str]:
    """What the diagnostics could not look at, and why."""
    return {name: reason for one in looking(trainer, copy) for name, reason in one.out_of_reach.items()}


def finish_copies(
    copies: Copies, result: Result, module: TrainingModule | None, trainer: lightning.Trainer | None
) -> Result:
    """Leave behind what each copy's own run would; returns the bundle's result, the means over those that completed."""
    own = []
    for index, copy in enumerate(copies):
        model, trained_on = None, {}
        if isinstance(module, BundleModule):
            model = module.stack.copy_of(index)
            trained_on = batches_by_length(copy.batches_by_seq_len, build_task(copy.job))
        one = replace(
            result,
            status="diverged" if copy.diverged else result.status,
            error=f"{DivergedError.__name__}: {copy.diverged}" if copy.diverged else result.error,
            metrics=final_metrics(copy.table, model),
            batches_by_length=trained_on,
            out_of_reach={} if trainer is None else out_of_reach(trainer, index),
            overrides=copy.overrides,
            seed=copy.seed,
            # Its share: together they cost what the bundle did.
            wall_seconds=round(result.wall_seconds / len(copies), 3),
        )
        finish(copy.job, copy.folder, copy.table, copy.board, one)
        own.append(one)
    counted = [one.metrics for one in own if one.status == result.status]
    names = dict.fromkeys(name for metrics in counted for name in metrics)
    means = {name: fmean(metrics[name] for metrics in counted if name in metrics) for name in names}
    means["copies/completed"] = sum(one.status == "completed" for one in own)
    error = result.error
    if error is None and copies.lost():
        each = "; ".join(f"seed {copies[index].seed}: {copies[index].diverged}" for index in copies.lost())
        error = f"{len(copies.lost())} of {len(copies)} copies diverged; {each}"
    return replace(result, metrics=means, error=error)


def finish(
    job: TrainConfig, folder: RunFolder, table: MetricsTable, board: RunTensorBoard | None, result: Result
) -> None:
    """Leave everything behind, whatever the status, and as much as can be written.

    The status comes last: a run that is killed before all of it is there is not complete, and can go on.

    Raises:
        OSError: the first thing that could not be written, after the others have been.
    """
    shown = {name: value for name, value in result.metrics.items() if name in table.last() and name in IN_HPARAMS}
    steps: list[Callable[[], None]] = [table.save]
    if board is not None:
        if result.status == "completed":
            curves = by_length(result.metrics).items()
            steps += [partial(board.log_curve, f"length_curve/{score}", curve) for score, curve in curves]
        steps += [partial(board.log_session, hparams(job), shown, result.status), board.close]
    failures = []
    for step in steps:
        try:
            step()
        except OSError as error:
            failures.append(error)
    if failures and result.status == "completed":
        result = replace(result, status="failed", error=describe(failures[0]))
    try:
        folder.finish(result)
    except OSError as error:
        failures.append(error)
        if result.status == "completed":
            # As far as anyone can read, it is not; the status alone may still find its place.
            with suppress(OSError):
                folder.finish(replace(result, status="failed", error=describe(error)))
    if failures:
        raise failures[0]
