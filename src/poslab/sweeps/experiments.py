"""Several experiments in one sweep, each with the settings that it sweeps itself."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import OmegaConf

from poslab.errors import ConfigError
from poslab.sweeps.sweep import Sweep


class Experiment(NamedTuple):
    """One of the experiments that a sweep was given.

    Attributes:
        params: the settings that it sweeps.
        jobs: the jobs that it lists.
        given: the overrides of the sweep, with this experiment only.
    """

    params: dict[str, str]
    jobs: list[str]
    given: list[Override]


def each_experiment(sweep: Sweep, given: Sequence[Override]) -> list[Experiment]:
    """The experiments of ``-m experiment=heads,width``; empty if one or none was given."""
    swept = next((one for one in given if one.key_or_group == "experiment" and one.is_sweep_override()), None)
    if swept is None:
        return []
    parser = OverridesParser.create(config_loader=sweep.composer)
    found = []
    for name in swept.sweep_string_iterator():
        one = parser.parse_override(f"experiment={name}")
        overrides = [one if each is swept else each for each in given]
        typed: Any = OmegaConf.to_container(sweep.config.hydra.overrides.hydra, resolve=False)
        config = sweep.composer.load_configuration(
            sweep.config.hydra.job.config_name,
            [*typed, *(str(each.input_line) for each in overrides)],
            RunMode.MULTIRUN,
        )
        sweeper: Any = OmegaConf.to_container(config.hydra.sweeper)
        found.append(Experiment(sweeper.get("params") or {}, sweeper.get("jobs") or [], overrides))
    return found


def refuse_planned(sweep: Sweep, given: Sequence[Override]) -> None:
    """Refuse a search over experiments that sweep settings of their own.

    Raises:
        ConfigError: names the first of them.
    """
    for one in each_experiment(sweep, given):
        if one.params:
            raise ConfigError(
                f"each of several experiments sweeps settings of its own ({', '.join(one.params)}), and a search has "
                "one space; search one experiment at a time"
            )
