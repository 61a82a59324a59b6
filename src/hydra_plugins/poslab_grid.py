"""Hydra's door to poslab's sweeps: ``hydra/sweeper=grid``. Hydra looks for sweepers in this package only."""

from dataclasses import dataclass
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser


@dataclass
class GridSweeperConf:
    _target_: str = "hydra_plugins.poslab_grid.GridSweeper"
    max_batch_size: int | None = None
    params: dict[str, str] | None = None


ConfigStore.instance().store(group="hydra/sweeper", name="grid", node=GridSweeperConf, provider="poslab")


class GridSweeper(BasicSweeper):
    """Every combination of the values given, checked before the first job starts; see `poslab.sweeps`."""

    def sweep(self, arguments: list[str]) -> Any:
        # Hydra imports this module at every start, --help included.
        from poslab.sweeps import Sweep

        assert self.config is not None
        assert self.launcher is not None
        assert self.hydra_context is not None
        loader = self.hydra_context.config_loader
        given = OverridesParser.create(config_loader=loader).parse_overrides([*self._parse_config(), *arguments])
        grid = self.split_arguments(given, None)[0]
        return Sweep(self.config, self.launcher, loader).run_grid(grid)
