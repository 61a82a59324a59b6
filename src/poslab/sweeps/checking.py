"""Composes and checks one job of a sweep, as far as that is possible without training."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf, open_dict

from poslab.build import build_task
from poslab.config.composing import Composer
from poslab.config.identity import flat
from poslab.config.overrides import key_of
from poslab.config.rules import did_you_mean
from poslab.config.schema import TrainConfig, checked
from poslab.errors import ConfigError
from poslab.preflight.checks import check_buildable
from poslab.sweeps.plan import Job, only


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
        ConfigError: an option of this job does not have a setting that those of other jobs may have.
        hydra.errors.HydraException, omegaconf.errors.OmegaConfBaseException: a mistake in what was typed.
    """
    try:
        return composer.load_sweep_config(sweep, list(overrides))
    except ConfigCompositionException as error:
        unknown = re.search(r"Could not (?:override|delete from config\.) '([^']+)'", str(error))
        group, _, name = unknown.group(1).partition(".") if unknown else ("", "", "")
        if not (name and composer.is_group(group) and any(map(composer.is_group, varying))):
            raise
        others = [one for one in overrides if not key_of(one).startswith(f"{group}.")]
        composed = composer.load_sweep_config(sweep, others)
        option = composed.hydra.runtime.choices[group]
        settings: Any = OmegaConf.to_container(composed[group])
        known = [key for key in flat(settings) if key != "_target_"]
        raise ConfigError(f"{group}={option} has no setting {name}{did_you_mean(name, known)}") from error


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
    return job, learner.model_of(0).note


def settings_of_the_sweep(config: DictConfig) -> dict[str, Any]:
    """The settings of a whole sweep in a configuration, flat and as written."""
    hydra = config.hydra
    parts = {
        "sweep": config.sweep,
        "comparison": config.comparison,
        "hydra.launcher": hydra.launcher,
        "hydra.sweeper": hydra.sweeper,
        "hydra.sweep": hydra.sweep,
        "hydra.callbacks": hydra.callbacks,
        "hydra.hydra_logging": hydra.hydra_logging,
    }
    found: dict[str, Any] = {key: OmegaConf.to_container(part, resolve=False) for key, part in parts.items()}
    return flat(found)


def refuse_settings_of_the_sweep(
    own: Mapping[str, Any], sweep: DictConfig, composed: DictConfig, job: Job, varying: Collection[str]
) -> None:
    """Refuse a swept option that sets what holds for the whole sweep, which has begun without it.

    Args:
        own: `settings_of_the_sweep` of the sweep itself.
        sweep: configuration of the multirun.
        composed: configuration of the job.
        job: with its overrides.
        varying: the keys that differ between jobs.

    Raises:
        ConfigError: names the option and the setting.
    """
    # A search composes its jobs without what was typed for the search.
    typed: Any = OmegaConf.to_container(sweep.hydra.overrides.task, resolve=False)
    known = [key_of(one) for one in typed]
    if "experiment" in varying:
        # The grid of each experiment is a part of the sweep's.
        known += ["hydra.sweeper.params", "hydra.sweeper.jobs"]
    found = settings_of_the_sweep(composed)
    for key in sorted(found.keys() | own.keys()):
        if found.get(key) != own.get(key) and not only(known, {key: None}):
            options = [one for one in job.overrides if key_of(one) in varying and "." not in key_of(one)]
            raise ConfigError(
                f"{' '.join(options)} sets {key}, which holds for a whole sweep and not for one of its jobs; type it, "
                "or run this choice in a sweep of its own"
            )


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
