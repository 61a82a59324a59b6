"""Jobs drawn from a search's space before its first trial, so that a mistake is refused before a folder is made."""

from collections.abc import Iterator, Sequence

import optuna
from optuna.samplers import RandomSampler

from poslab.cli.explain import explain, main_config_dir
from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError
from poslab.sweeps.search.options import quiet
from poslab.sweeps.search.space import Parameter, literal
from poslab.sweeps.sweep import Sweep

MOST_DRAWS = 30


def sample_jobs(sweep: Sweep, space: Sequence[Parameter], fixed: Sequence[str]) -> Iterator[TrainConfig]:
    """Draw jobs that can be run, one for each combination of the choices that are words.

    Words choose schemes, tasks and diagnostics, and so the metrics; numbers do not. At most `MOST_DRAWS` combinations
    are drawn, so a large space is not covered.

    Raises:
        ConfigError: a key is unknown, or no drawn combination can be run; gives the first reason.
    """
    with quiet():
        draws = optuna.create_study(sampler=RandomSampler(seed=0))
    yielded: set[tuple[str, ...]] = set()
    tried: set[tuple[str, ...]] = set()
    first_reason = ""
    for _ in range(MOST_DRAWS):
        drawn = draws.ask({parameter.key: parameter.distribution for parameter in space}).params
        words = tuple(value for value in drawn.values() if isinstance(literal(value), str))
        settings = tuple(parameter.override(drawn[parameter.key]) for parameter in space)
        if words in yielded or settings in tried:
            continue
        tried.add(settings)
        try:
            _, job, _ = sweep.composed([*fixed, *settings], {parameter.key for parameter in space})
        except Exception as error:
            reason = explain(error, main_config_dir(sweep.config))
            if reason.startswith("unknown key"):
                # Another value does not correct a name.
                raise ConfigError(reason) from error
            first_reason = first_reason or reason
            continue
        yielded.add(words)
        yield job
    if not yielded:
        raise ConfigError(f"none of {len(tried)} combinations tried can be run; the first: {first_reason}")
