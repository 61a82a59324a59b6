"""Checks a job before its folder is made and before its first step."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from poslab.build import build_task, check_memory, check_model_fits
from poslab.config.schema import TrainConfig, checked
from poslab.errors import ConfigError
from poslab.preflight.compiler import check_compiler
from poslab.runs.folder import RunFolder
from poslab.runs.resume import named_checkpoint
from poslab.system.devices import check_device
from poslab.system.startup import quick_imports
from poslab.tasks import Task
from poslab.training.stopping import stop_condition

if TYPE_CHECKING:
    from poslab.training.learner import Learner
    from poslab.training.learners import Prepared


def preflight(config: DictConfig | TrainConfig, folder: Path | None) -> "Prepared":
    """Check a configuration by its own rules, with its task and scheme, and against the disk; return what was built.

    Args:
        config: as composed, or already checked by its own rules.
        folder: where the run will write; None if another process checks it.

    Raises:
        ConfigError: one line that names the values and the way out.
        omegaconf.errors.OmegaConfBaseException: an unknown key or a wrong type.
    """
    job = config if isinstance(config, TrainConfig) else checked(config)
    task = build_task(job)
    place = None if folder is None else RunFolder(folder)
    resumes = place is not None and job.resume is not None and place.taken()
    if place is not None and not resumes:
        place.check_usable()
    learner = check_buildable(job, task, most_replicas=job.seeds)
    check_device(job.trainer.accelerator, job.trainer.devices)
    # Not at the top: torch and Lightning take seconds, and a typing error is answered at once.
    from poslab.training.checkpoints import room_for
    from poslab.training.learners import Prepared

    if place is not None:
        place.check_writable(room_for(learner.model_of(0), job.seeds, job.kept_checkpoints))
    if job.ckpt_path is not None and not resumes:
        named_checkpoint(job)
    return Prepared(job, task, learner)


def check_buildable(job: TrainConfig, task: Task, most_replicas: int = 2) -> "Learner":
    """Refuse a job that does not fit into memory, or that cannot be built or compiled. Needs torch.

    Args:
        job: checked.
        task: of the job.
        most_replicas: build at most this number; two show whether any number can be trained together.

    Returns:
        the models, initialised from the seeds of the job.

    Raises:
        ConfigError: one line that names the values and the way out.
    """
    check_compiler(job)
    stop_condition(job.trainer.stop_when)
    # Not at the top: torch, Lightning and matplotlib take seconds, and a typing error is answered at once.
    with quick_imports():
        # First, because a job that they refuse needs none of the slow imports below.
        check_model_fits(job, task)
        check_memory(job, task)
        from poslab.data.stream import check_holdout
        from poslab.diagnostics import check_diagnostics
        from poslab.preflight.replicas import try_together
        from poslab.training.learners import build_learner
    check_diagnostics(job.diagnostics, task, job.model.max_context_length or task.seq_len)
    if job.data.holdout is not None:
        try:
            check_holdout(task, job.data.holdout, job.data.batch_size, job.model.vocab_size or task.vocab_size)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    small = replace(job, seeds=min(job.seeds, most_replicas))
    return build_learner(job, task) if job.seeds == 1 else try_together(small, task)
