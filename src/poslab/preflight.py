"""Everything that can be refused before a folder is made or a step is taken."""

from pathlib import Path

from omegaconf import DictConfig

from poslab.assembly import build_model, build_task, check_model_fits
from poslab.config import TrainConfig, checked
from poslab.devices import check_device
from poslab.memory import check_memory
from poslab.results import RunFolder
from poslab.tasks import Task


def preflight(config: DictConfig, folder: Path) -> TrainConfig:
    """The configuration, checked against itself, the task, the scheme and the disk; cheapest first.

    Raises:
        ConfigError: one line that names the values and the way out.
        omegaconf.errors.OmegaConfBaseException: an unknown key or a wrong type.
    """
    job = checked(config)
    task = build_task(job)
    if not (job.resume and RunFolder(folder).taken()):
        RunFolder(folder).check_usable()
    check_buildable(job, task)
    check_device(job)
    return job


def check_buildable(job: TrainConfig, task: Task) -> None:
    """Refuse a job that does not fit, or whose model, diagnostics or copies cannot be built; needs torch.

    Raises:
        ConfigError: one line that names the values and the way out.
    """
    check_model_fits(job, task)
    check_memory(job, task)
    model = build_model(job, task)
    # Not at the top: it loads matplotlib, and a typing error is answered at once.
    from poslab.bundle.check import check_copies
    from poslab.diagnostics import check_diagnostics

    check_diagnostics(job.diagnostics, task, model.max_context_length)
    check_copies(job, task, model)
