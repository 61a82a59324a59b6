"""Everything that can be refused before a folder is made or a step is taken."""

from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from poslab.build import build_model, build_task, check_model_fits
from poslab.config.schema import TrainConfig, checked
from poslab.preflight.compiler import check_compiler
from poslab.runs.folder import RunFolder
from poslab.runs.resume import named_checkpoint
from poslab.sizes import check_memory
from poslab.system.devices import check_device
from poslab.system.startup import quick_imports
from poslab.tasks import Task

if TYPE_CHECKING:
    from poslab.model import LanguageModel


def preflight(config: DictConfig, folder: Path | None) -> TrainConfig:
    """The configuration, checked against itself, the task, the scheme and the disk; cheapest first.

    Args:
        config: as composed.
        folder: where the run will write; None where that is another process's to check.

    Raises:
        ConfigError: one line that names the values and the way out.
        omegaconf.errors.OmegaConfBaseException: an unknown key or a wrong type.
    """
    job = checked(config)
    task = build_task(job)
    place = None if folder is None else RunFolder(folder)
    going_on = place is not None and job.resume is not None and place.taken()
    if place is not None and not going_on:
        place.check_usable()
    model = check_buildable(job, task)
    check_device(job.trainer.accelerator, job.trainer.devices)
    # Not at the top: torch and Lightning take seconds, and a typing error is answered at once.
    from poslab.training.checkpoints import room_for

    if place is not None:
        place.check_writable(room_for(job, model))
    if job.ckpt_path is not None and not going_on:
        named_checkpoint(job)
    return job


def check_buildable(job: TrainConfig, task: Task) -> "LanguageModel":
    """The model of a job; refuses one that does not fit, or cannot be built or compiled in all its parts. Needs torch.

    Raises:
        ConfigError: one line that names the values and the way out.
    """
    check_compiler(job)
    # Not at the top: torch, Lightning and matplotlib take seconds, and a typing error is answered at once.
    with quick_imports():
        # These two load torch, and of a job that they refuse nothing more is needed.
        check_model_fits(job, task)
        check_memory(job, task)
        from poslab.diagnostics import check_diagnostics
        from poslab.preflight.replicas import check_copies
    model = build_model(job, task)
    check_diagnostics(job.diagnostics, task, model.max_context_length)
    check_copies(job, task, model)
    return model
