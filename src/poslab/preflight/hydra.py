"""Hydra's callback that checks a job before Hydra makes a folder for it."""

import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from poslab.cli.explain import debugging, explain, main_config_dir
from poslab.config import schema
from poslab.errors import ConfigError
from poslab.preflight.ranks import check_ranks
from poslab.system.ranks import is_second_rank, started_by_first_rank

if TYPE_CHECKING:
    from poslab.training.learners import Prepared


def require_preflight() -> None:
    """Have every job checked before Hydra makes a folder, also one whose configuration says nothing of Hydra itself."""
    callbacks = {"preflight": {"_target_": f"{Preflight.__module__}.{Preflight.__qualname__}"}}
    ConfigStore.instance().store(group="hydra", name="config", node=HydraConf(callbacks=callbacks), provider="poslab")


class Preflight(Callback):
    """Refuses a bad configuration before Hydra makes a folder for it.

    Attributes:
        prepared: what was checked and built for the run of this process; None in a sweep, and on a rank that rank 0
            started.
    """

    prepared: ClassVar["Prepared | None"] = None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        try:
            check_names(config)
        except Exception as error:
            if debugging():
                traceback.print_exc()
            raise SystemExit(f"error: {explain(error, main_config_dir(config))}") from None

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        if started_by_first_rank():
            return
        try:
            from poslab.preflight.checks import preflight

            # First: the folder's name is made from the configuration.
            job = schema.checked(config)
            check_names(config)
            check_ranks(job, str(OmegaConf.to_container(config.hydra.run, resolve=False)["dir"]))  # type: ignore[index, call-overload]
            # The folder is claimed by rank 0.
            Preflight.prepared = preflight(job, None if is_second_rank() else Path(config.hydra.run.dir))
        except Exception as error:
            # Hydra turns an Exception from a callback into a warning and goes on; a SystemExit passes.
            if debugging():
                traceback.print_exc()
            if is_second_rank():
                raise SystemExit(1) from None
            raise SystemExit(f"error: {explain(error, main_config_dir(config))}") from None


def check_names(config: DictConfig) -> None:
    """Refuse names of files that Hydra could not make in a run's folder, or whose own config.yaml would be the run's.

    Raises:
        ConfigError: names the value and the way out.
    """
    # Hydra looks at it when the folder is there already, and then without the other settings.
    OmegaConf.to_container(OmegaConf.masked_copy(config, "hydra").hydra.job, resolve=True)
    subdir, job = config.hydra.output_subdir, config.hydra.job.name
    if subdir is not None and (os.path.normpath(subdir) == "." or subdir.startswith(("/", "..")) or too_long(subdir)):
        raise ConfigError(f"hydra.output_subdir={subdir} is no name in the run's folder; give one, .hydra say, or null")
    if os.path.basename(job) != job or too_long(f"{job}.log"):
        raise ConfigError(f"hydra.job.name={job} is no name of a file; give another, without a slash")


def too_long(path: str) -> bool:
    """Whether file systems have no room for a name in it."""
    return any(len(os.fsencode(name)) > 255 for name in path.split("/"))
