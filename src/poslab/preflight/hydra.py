"""Hydra callback that checks a job before Hydra makes a folder for it."""

import logging
import os
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from poslab.cli.console import one_line_errors
from poslab.cli.explain import main_config_dir
from poslab.config import schema
from poslab.config.composing import compose_by_files_read_once
from poslab.config.identity import choice_of
from poslab.errors import ConfigError
from poslab.preflight.classes import check_classes
from poslab.preflight.ranks import check_ranks
from poslab.preflight.words import check_chosen, check_words
from poslab.system.ranks import is_rank_zero, started_by_first_rank
from poslab.system.shell import remember_typed_in

if TYPE_CHECKING:
    from poslab.training.learners import Prepared


log = logging.getLogger(__name__)


def require_preflight() -> None:
    """Register the callback, also for a configuration without Hydra settings of its own, such as a stored one.

    For the program itself, not for another Hydra program that imports a part of this package. Also lets Hydra compose
    as a sweep needs it.
    """
    compose_by_files_read_once()
    callbacks = {"preflight": {"_target_": f"{Preflight.__module__}.{Preflight.__qualname__}"}}
    store = ConfigStore.instance()
    store.store(group="hydra", name="config", node=HydraConf(callbacks=callbacks), provider="poslab")
    # Hydra copies all that it has registered for every group that --help lists and every job that a sweep composes. The
    # store hands out copies of its nodes anyway, and half of the time of --help went into copying it.
    store.__deepcopy__ = lambda memo: store  # type: ignore[attr-defined]
    guard_composition()


def guard_composition() -> None:
    """Have each configuration checked as soon as Hydra has composed it; then Hydra builds the classes that it names."""
    compose = ConfigLoaderImpl.load_configuration
    if hasattr(compose, "__wrapped__"):
        return

    @wraps(compose)
    def guarded(self: ConfigLoaderImpl, *arguments: Any, **options: Any) -> DictConfig:
        for source in self.get_sources():
            if source.provider == "main":
                own_choices_first(Path(source.path))
        config = compose(self, *arguments, **options)
        check_classes(config)
        return config

    ConfigLoaderImpl.load_configuration = guarded  # type: ignore[method-assign]


def own_choices_first(config_dir: Path) -> None:
    """Forget what plug-ins have registered under the name of a file of the program's own configuration.

    Hydra would take it for the schema of that file and merge the two.
    """
    for file in config_dir.rglob("*.yaml"):
        *groups, name = file.relative_to(config_dir).parts
        registered = ConfigStore.instance().repo
        for group in groups:
            registered = registered.get(group, {})
        registered.pop(name, None)


class Preflight(Callback):
    """Refuses a bad configuration before Hydra makes a folder for it.

    An error ends the process here, because Hydra turns an Exception of a callback into a warning and continues.

    Attributes:
        first_line: what a run printed first.
        prepared: the checked job and what was built for it; None in a sweep, and on a rank that rank 0 started.
    """

    prepared: ClassVar["Prepared | None"] = None

    def __init__(self) -> None:
        self.first_line = ""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        with one_line_errors(main_config_dir(config)):
            check_words(config, in_a_sweep=True)
            check_names(config)

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        if started_by_first_rank():
            return
        with one_line_errors(main_config_dir(config)):
            check_words(config, in_a_sweep=False)
            # Before the names, because the name of the folder depends on the configuration.
            job = schema.checked(config)
            check_chosen(config)
            check_names(config)
            self.first_line = (
                f"start  {choice_of(job.task['_target_'])}, {choice_of(job.pos['_target_'])}, "
                f"d_model {job.model.d_model}, n_heads {job.model.n_heads}, {job.total_steps} steps: "
                "loading torch and Lightning"
            )
            # The imports take seconds.
            log.info(self.first_line)
            check_ranks(job, str(OmegaConf.to_container(config.hydra.run, resolve=False)["dir"]))  # type: ignore[index, call-overload]
            from poslab.preflight.checks import preflight

            # Only rank 0 claims the folder, so only it checks the folder.
            Preflight.prepared = preflight(job, Path(config.hydra.run.dir) if is_rank_zero() else None)

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        # Hydra has changed to the job's folder by now.
        remember_typed_in(Path(config.hydra.runtime.cwd) if config.hydra.job.chdir else None)
        if self.first_line:
            # For the log file alone, which did not exist then.
            log.debug(self.first_line)


def check_names(config: DictConfig) -> None:
    """Refuse names of files that Hydra cannot make in a run's folder, or that would replace the run's config.yaml.

    Raises:
        ConfigError: names the value and the way out.
    """
    # Hydra resolves these only after it has made the folder, and without the other settings.
    alone = OmegaConf.masked_copy(config, "hydra").hydra.job
    # Made of the overrides as typed, which may refer to the other settings; nothing reads it.
    alone.override_dirname = ""
    OmegaConf.to_container(alone, resolve=True)
    subdir, job = config.hydra.output_subdir, config.hydra.job.name
    if subdir is not None and (os.path.normpath(subdir) == "." or subdir.startswith(("/", "..")) or too_long(subdir)):
        raise ConfigError(
            f"hydra.output_subdir={subdir} is not a folder inside the run's folder; give null, or for example .hydra"
        )
    if os.path.basename(job) != job or too_long(f"{job}.log"):
        raise ConfigError(f"hydra.job.name={job} is not the name of a file; give another, without a slash")


def too_long(path: str) -> bool:
    """Whether a name in the path is longer than file systems allow."""
    return any(len(os.fsencode(name)) > 255 for name in path.split("/"))
