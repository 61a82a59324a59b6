"""One job, from a configuration to a finished run folder; `run` and `train` read top to bottom."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from lightning.pytorch.callbacks import Callback
from omegaconf import DictConfig

from poslab.config.identity import model_settings
from poslab.config.schema import TrainConfig, checked
from poslab.data.module import TaskData
from poslab.experiment.record import RunRecord, recorded
from poslab.experiment.trainer import build_trainer, close_gallery, quieten
from poslab.model.start import start_scales
from poslab.runs.folder import RunFolder
from poslab.runs.result import stored_result
from poslab.system.determinism import deterministic_algorithms
from poslab.system.devices import check_device
from poslab.system.threads import choose_threads
from poslab.tasks import Task
from poslab.training.checkpoints import room_for
from poslab.training.learners import Prepared, prepare
from poslab.training.module import TrainingModule
from poslab.training.ranks import local_ranks
from poslab.training.stopping import stop_condition


def run(
    config: DictConfig | Prepared,
    path: Path,
    overrides: Sequence[str] = (),
    brief: bool = False,
    callbacks: Sequence[Callback] = (),
) -> float:
    """Train one job and leave everything it found in its folder.

    Args:
        config: the composed configuration, or a checked one and what was built for it.
        path: the folder; made if it does not exist, refused if it holds a run, unless ``resume=auto``.
        overrides: what was typed to get this configuration, for the record.
        brief: one of many jobs: report the end in one line, draw the first and the last pictures only.
        callbacks: called after the diagnostics and before a checkpoint is saved.

    Returns:
        the last validation loss.

    Raises:
        DivergedError: the loss became NaN or infinite; with several seeds also where some replicas completed.
        ConfigError: the configuration cannot be run.
        StoppedError: the run was stopped, with exit code 130 (Ctrl-C) or 143 (SIGTERM, SIGUSR1, SIGUSR2).
    """
    started = time.perf_counter()
    quieten()
    prepared, job = (config, config.job) if isinstance(config, Prepared) else (None, checked(config))
    folder = RunFolder(path)
    with (
        deterministic_algorithms(job.deterministic),
        recorded(job, folder, overrides, brief, started) as record,
    ):
        if record is not None:
            train(job, record, callbacks, prepared)
    return float(stored_result(path)["metrics"]["val/loss"]) if record is None else record.conclude()


def train(
    job: TrainConfig, record: RunRecord, callbacks: Sequence[Callback] = (), prepared: Prepared | None = None
) -> None:
    """Build what the configuration describes and fit it."""
    # Also checked before the launch, but a worker may see other devices.
    check_device(job.trainer.accelerator, job.trainer.devices)
    _, task, learner = prepared or prepare(job)
    set_threads(job, task)
    model = learner.model_of(0)
    if record.folder.writes:
        record.folder.check_writable(room_for(model, job.seeds, job.kept_checkpoints))
    for index, replica in enumerate(record.replicas):
        replica.start = start_scales(learner.model_of(index), task.seq_len)
    seeds = [replica.seed for replica in record.replicas]
    data = TaskData(
        task, job.data, seeds, model.vocab_size, one_shape=learner.one_shape, accumulate=job.trainer.accumulate_batches
    )
    module = TrainingModule(
        learner,
        record.replicas,
        job.optimizer,
        job.trainer.log_every_n_steps,
        job.total_steps,
        job.trainer.gradient_clip_norm,
        model_settings(job),
        stop_condition(job.trainer.stop_when),
    )
    with local_ranks(record.folder.path, job.trainer.devices, job.trainer.strategy, record.lost_rank):
        trainer = build_trainer(job, record, callbacks)
        record.watch(task, module, trainer)
        torch.manual_seed(job.seed)
        learner.begin()
        trainer.fit(module, datamodule=data, ckpt_path=record.start.checkpoint, weights_only=True)
    close_gallery(trainer)


def set_threads(job: TrainConfig, task: Task) -> None:
    """Give torch as many CPU threads as this process's part of a step deserves."""
    here = job.trainer.devices
    rows = job.data.batch_size * job.seeds // (here * job.trainer.num_nodes)
    torch.set_num_threads(choose_threads(job.trainer.threads, rows, task.seq_len, job.model.d_model, here))
