"""The sweepers of ``conf/hydra/sweeper``; Hydra looks for sweepers in this package only.

Each `sweep` imports what it needs, because every Hydra program of the environment imports this module at its start. It
registers no choice, which would be one of those programs too.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

if TYPE_CHECKING:
    from poslab.sweeps.sweep import Sweep

log = logging.getLogger(__name__)


class OwnSweeper(BasicSweeper):
    """What both sweepers share: they open a `Sweep` and read its overrides."""

    def opened(self, arguments: list[str]) -> "tuple[Sweep, list[Override]]":
        """The sweep and its overrides: those typed, and those of an experiment whose keys were not typed."""
        log.info("start  a sweep: loading torch, to check every job before the first one")
        from poslab.config.composing import Composer
        from poslab.sweeps.sweep import Sweep

        assert self.config is not None
        assert self.launcher is not None
        assert self.hydra_context is not None
        # The launcher has the same context, and composes its jobs with this.
        composer = self.hydra_context.config_loader
        if not isinstance(composer, Composer):
            composer = Composer(composer.get_search_path())
            self.hydra_context.config_loader = composer
        sweep = Sweep(self.config, self.launcher, composer)
        parser = OverridesParser.create(config_loader=composer)
        return sweep, with_planned(self.params, parser.parse_overrides(arguments), parser)


def with_planned(params: Mapping[str, str], typed: list[Override], parser: OverridesParser) -> list[Override]:
    """The settings that an experiment sweeps and that were not typed, and what was typed."""
    keys = {override.key_or_group for override in typed}
    planned = parser.parse_overrides([f"{key}={value}" for key, value in params.items()])
    return [*(each for each in planned if each.key_or_group not in keys), *typed]


class GridSweeper(OwnSweeper):
    """Runs every combination of the given values; see `poslab.sweeps`.

    Args:
        params: settings that an experiment sweeps.
        jobs: settings that belong together, ``pos=hard_alibi model.n_heads=8``; each is combined with the grid.
    """

    def __init__(self, params: dict[str, str] | None = None, jobs: list[str] | None = None) -> None:
        super().__init__(max_batch_size=None, params=params)
        self.jobs = list(jobs or [])

    def sweep(self, arguments: list[str]) -> Any:
        from poslab.sweeps.experiments import each_experiment
        from poslab.sweeps.grid import with_jobs

        sweep, given = self.opened(arguments)
        grid = with_jobs(self.split_arguments(given, None)[0], self.jobs)
        if experiments := each_experiment(sweep, given):
            grid = []
            for one in experiments:
                overrides = with_planned(one.params, one.given, OverridesParser.create(config_loader=sweep.composer))
                grid += with_jobs(self.split_arguments(overrides, None)[0], one.jobs)
        return sweep.run_grid(grid)


class OptunaSweeper(OwnSweeper):
    """Searches for the best settings instead of running them all; see `poslab.sweeps.search`."""

    def __init__(self, params: dict[str, str] | None = None, **options: Any) -> None:
        super().__init__(max_batch_size=None, params=params)
        self.options = options

    def sweep(self, arguments: list[str]) -> Any:
        from poslab.launchers.pool import load

        load("optuna", "hydra/sweeper=optuna", "optuna")
        from poslab.sweeps.experiments import refuse_planned
        from poslab.sweeps.search.loop import run_search

        sweep, given = self.opened(arguments)
        refuse_planned(sweep, given)
        return run_search(sweep, given, self.options)
