"""A look at some of the trials before the first one starts."""

from collections.abc import Iterator, Sequence

import optuna
from hydra.core.config_loader import ConfigLoader
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig
from optuna.samplers import RandomSampler

from poslab.cli.explain import explain, main_config_dir
from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError
from poslab.sweeps.plan import check_place
from poslab.sweeps.search.options import quiet
from poslab.sweeps.search.space import Parameter, literal
from poslab.sweeps.sweep import checked_job

PROBES = 30
"""How many combinations are drawn, to find one that can be run."""


def probes(
    config: DictConfig, launcher: Launcher, loader: ConfigLoader, space: Sequence[Parameter], fixed: Sequence[str]
) -> Iterator[TrainConfig]:
    """Jobs that the search could run, one for each combination of choices that are words, as far as a few draws go.

    Raises:
        ConfigError: none of the combinations drawn can be run; says why not the first.
    """
    with quiet():
        draws = optuna.create_study(sampler=RandomSampler(seed=0))
    seen: set[tuple[str, ...]] = set()
    tried: set[tuple[str, ...]] = set()
    refused = ""
    for _ in range(PROBES):
        drawn = draws.ask({parameter.key: parameter.distribution for parameter in space}).params
        words = tuple(value for value in drawn.values() if isinstance(literal(value), str))
        if words in seen:
            continue
        settings = tuple(parameter.override(drawn[parameter.key]) for parameter in space)
        if settings in tried:
            continue
        tried.add(settings)
        try:
            job = checked_job(loader.load_sweep_config(config, [*fixed, *settings]))
            check_place(launcher, job)
        except Exception as error:
            reason = explain(error, main_config_dir(config))
            if reason.startswith("unknown key"):
                # No other value mends a name.
                raise ConfigError(reason) from error
            refused = refused or reason
            continue
        seen.add(words)
        yield job
    if not seen:
        raise ConfigError(f"none of {len(tried)} combinations tried can be run; the first: {refused}")
