"""The sweeper ``hydra/sweeper=optuna``; Hydra looks for sweepers in this package only."""

from dataclasses import dataclass, field
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser


@dataclass
class ObjectiveConf:
    """A number of a job's result and the direction in which it improves."""

    metric: str = "val/loss"
    direction: str = "minimize"


@dataclass
class OptunaSweeperConf:
    """See `poslab.sweeps.search.options.Options`."""

    _target_: str = "hydra_plugins.poslab_optuna.OptunaSweeper"
    _convert_: str = "all"
    n_trials: int = 20
    n_jobs: int = 1
    objectives: list[ObjectiveConf] = field(default_factory=lambda: [ObjectiveConf()])
    sampler: str = "tpe"
    sampler_options: Any = None  # Any, because the keys of a typed dict could not be given without a plus
    pruner: str = "none"
    pruner_options: Any = None
    seed: int = 0
    storage: str | None = None
    params: dict[str, str] = field(default_factory=dict)


ConfigStore.instance().store(group="hydra/sweeper", name="optuna", node=OptunaSweeperConf, provider="poslab")


class OptunaSweeper(BasicSweeper):
    """Searches for the best settings instead of running them all; see `poslab.sweeps.search`."""

    def __init__(self, params: dict[str, str] | None = None, **options: Any) -> None:
        super().__init__(max_batch_size=None, params=params)
        self.options = options

    def sweep(self, arguments: list[str]) -> Any:
        # Not at the top: Hydra imports this module at every start, also for --help.
        from poslab.errors import ConfigError

        try:
            from poslab.sweeps.search.loop import run_search
            from poslab.sweeps.sweep import Sweep
        except ModuleNotFoundError as error:
            if error.name != "optuna":
                raise
            raise ConfigError("hydra/sweeper=optuna needs Optuna: pip install 'poslab[optuna]'") from None

        assert self.config is not None
        assert self.launcher is not None
        assert self.hydra_context is not None
        loader = self.hydra_context.config_loader
        given = OverridesParser.create(config_loader=loader).parse_overrides([*self._parse_config(), *arguments])
        return run_search(Sweep(self.config, self.launcher, loader), given, self.options)
