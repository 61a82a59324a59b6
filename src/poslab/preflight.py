"""Everything that can be refused before a folder is made or a step is taken."""

from pathlib import Path

from omegaconf import DictConfig

from poslab.assembly import build_model, build_task
from poslab.config import TrainConfig, checked
from poslab.devices import check_device
from poslab.results import RunFolder
from poslab.tasks import Task


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
    if folder is not None and not (job.resume and RunFolder(folder).taken()):
        RunFolder(folder).check_usable()
    check_buildable(job, task)
    check_device(job)
    return job


def check_buildable(job: TrainConfig, task: Task) -> None:
    """Refuse a job whose model, diagnostics or copies cannot be built; needs torch.

    Raises:
        ConfigError: one line that names the values and the way out.
    """
    model = build_model(job, task)
    # Not at the top: it loads matplotlib, and a typing error is answered at once.
    from poslab.bundle.check import check_copies
    from poslab.diagnostics import check_diagnostics

    check_diagnostics(job.diagnostics, task, model.max_context_length)
    check_copies(job, task, model)
