"""The sweeper ``hydra/sweeper=grid``; Hydra looks for sweepers in this package only."""

from dataclasses import dataclass
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser


@dataclass
class GridSweeperConf:
    _target_: str = "hydra_plugins.poslab_grid.GridSweeper"
    params: dict[str, str] | None = None
    jobs: list[str] | None = None


ConfigStore.instance().store(group="hydra/sweeper", name="grid", node=GridSweeperConf, provider="poslab")


class GridSweeper(BasicSweeper):
    """Runs every combination of the given values; see `poslab.sweeps`.

    Args:
        params: settings that an experiment sweeps.
        jobs: settings that belong together, ``pos=hard_alibi model.n_heads=8``; each is combined with the grid.
    """

    def __init__(self, params: dict[str, str] | None = None, jobs: list[str] | None = None) -> None:
        super().__init__(max_batch_size=None, params=params)
        self.jobs = list(jobs or [])

    def sweep(self, arguments: list[str]) -> Any:
        # Not at the top: Hydra imports this module at every start, also for --help.
        from poslab.sweeps.grid import with_jobs
        from poslab.sweeps.sweep import Sweep

        assert self.config is not None
        assert self.launcher is not None
        assert self.hydra_context is not None
        loader = self.hydra_context.config_loader
        parser = OverridesParser.create(config_loader=loader)
        typed = parser.parse_overrides(arguments)
        keys = {override.key_or_group for override in typed}
        # A typed value replaces the experiment's.
        planned = [each for each in parser.parse_overrides(self._parse_config()) if each.key_or_group not in keys]
        grid = with_jobs(self.split_arguments([*planned, *typed], None)[0], self.jobs)
        return Sweep(self.config, self.launcher, loader).run_grid(grid)
