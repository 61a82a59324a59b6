"""Composes and checks one job of a sweep, as far as that is possible without training."""

from collections.abc import Collection, Sequence
from dataclasses import fields

from omegaconf import DictConfig, open_dict

from poslab.build import build_task
from poslab.config.composing import Composer
from poslab.config.schema import TrainConfig, checked
from poslab.errors import ConfigError
from poslab.preflight.checks import check_buildable

# What a job's configuration cannot change, because the sweep has begun with the values of its own.
OF_THE_SWEEP = ("sweep", "comparison", "hydra.launcher", "hydra.sweeper", "hydra.sweep.dir", "hydra.hydra_logging")


def composed_job(
    composer: Composer, sweep: DictConfig, overrides: Sequence[str], varying: Collection[str]
) -> DictConfig:
    """Compose one job.

    Args:
        composer: of the sweep.
        sweep: configuration of the multirun.
        overrides: of this job.
        varying: the keys that differ between jobs.

    Raises:
        ConfigError: an option of this job has not a setting that others may have.
        hydra.errors.HydraException, omegaconf.errors.OmegaConfBaseException: a mistake in what was typed.
    """
    return composer.load_sweep_config(sweep, list(overrides))


def checked_job(composed: DictConfig) -> tuple[TrainConfig, str]:
    """One job's configuration, checked as far as possible without training, and the note of its position scheme.

    Raises:
        ConfigError, omegaconf.errors.OmegaConfBaseException: it cannot be run.
    """
    job = checked(composed)
    learner = check_buildable(job, build_task(job))
    if job.trainer.strategy != "auto":
        raise ConfigError(
            f"trainer={job.trainer.strategy} starts its processes by typing the command again, the whole sweep; run it "
            "alone"
        )
    if job.ckpt_path is not None:
        raise ConfigError("ckpt_path starts one run, and a sweep has many; sweep.resume resumes all of them")
    return job, learner.model_of(0).positions.note


def ready_to_run(composed: DictConfig, job: TrainConfig, subdir: str, folder: str) -> DictConfig:
    """The configuration with which a launcher runs a checked job: nothing in it is left to resolve.

    Args:
        composed: of the job, with Hydra's part.
        job: the same, checked.
        subdir: name of the job's folder.
        folder: of the sweep, absolute, because a cluster's worker may have another working directory.
    """
    with open_dict(composed):
        for part in fields(job):
            composed[part.name] = getattr(job, part.name)
        composed.resume = "auto"
        composed.hydra.sweep.dir = folder
        composed.hydra.sweep.subdir = subdir
    return composed
