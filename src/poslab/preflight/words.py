"""Refuses words that Hydra accepts and that would have no effect."""

import sys
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from poslab.config.identity import Role, role_of
from poslab.config.overrides import key_of
from poslab.errors import ConfigError

OWN_LOGGING = (
    "has no effect, because the program has its own; without a console: hydra.job_logging.root.handlers=[file]"
)
WITH_M = "is for a sweep, and this is a single run; add -m, or leave it out"
# The key of a word, or a part of it, to the reason why the word has no effect.
NEVER = {"hydra/job_logging": OWN_LOGGING, "hydra/hydra_logging": OWN_LOGGING}
IN_A_SWEEP = {
    "hydra.run.dir": "is the folder of a single run; the folder of a sweep is hydra.sweep.dir",
    "hydra.sweep.subdir": "names the folders of jobs, and a sweep names them itself; leave it out",
    "hydra.job.num": "is set for each job by the sweep; leave it out",
    "hydra.job.id": "is set for each job by the sweep; leave it out",
    "resume": "resumes a single run; sweep.resume=latest, or the folder of a sweep, resumes a sweep",
}
IN_A_RUN = {
    "hydra.sweep": WITH_M,
    "hydra/sweeper": WITH_M,
    "hydra.sweeper": WITH_M,
    "hydra/launcher": WITH_M,
    "hydra.launcher": WITH_M,
    "sweep": WITH_M,
}


def check_words(config: DictConfig, in_a_sweep: bool) -> None:
    """Refuse typed words that would have no effect.

    Args:
        config: with Hydra's part.
        in_a_sweep: whether several jobs are run.

    Raises:
        ConfigError: names the word and the way out.
    """
    overrides: Any = OmegaConf.to_container(config.hydra.overrides, resolve=False)
    words: list[str] = [*overrides["hydra"], *overrides["task"]]
    refused = NEVER | (IN_A_SWEEP if in_a_sweep else IN_A_RUN)
    for word in words:
        key = key_of(word)
        for part, reason in refused.items():
            if f"{key}.".startswith(f"{part}."):
                raise ConfigError(f"{word} {reason}")
    if in_a_sweep:
        _check_swept(overrides["task"])
    elif "hydra.mode=RUN" not in sys.argv:
        # Hydra adds this word itself where -m is not typed, so only the typed words tell.
        for name in ("params", "jobs"):
            if OmegaConf.select(config, f"hydra.sweeper.{name}"):
                raise ConfigError(
                    f"this configuration sweeps (hydra.sweeper.{name}), and this is a single run; add -m, or "
                    "hydra.mode=RUN for one job without them"
                )


def check_chosen(config: DictConfig) -> None:
    """Refuse a typed option of a diagnostic that was not chosen; options that an experiment sets may wait for one.

    Args:
        config: of one job, with Hydra's part.

    Raises:
        ConfigError: names the word and the way out.
    """
    overrides: Any = OmegaConf.to_container(config.hydra.overrides, resolve=False)
    chosen: Any = OmegaConf.to_container(config.diagnostics, resolve=False)
    for word in overrides["task"]:
        part, _, rest = key_of(word).partition(".")
        name = rest.partition(".")[0]
        if part == "diagnostics" and name in chosen and "_target_" not in (chosen[name] or ()):
            raise ConfigError(f"{word} has no effect, because {name} was not chosen; choose it: diagnostics=[{name}]")


def _check_swept(words: Sequence[str]) -> None:
    """Refuse several values for a whole sweep, and a key that is given twice where one word gives several values."""
    swept = {word for word in words if OverridesParser.create().parse_override(word).is_sweep_override()}
    for word in words:
        key = key_of(word)
        if word in swept and (role_of(key) is Role.RESTART or key.partition(".")[0] == "comparison"):
            raise ConfigError(f"{word}: {key} holds for the whole sweep; give it one value")
        again = next((other for other in words if other != word and key_of(other) == key), None)
        if word in swept and again is not None:
            raise ConfigError(f"{key} is given twice, as {word} and {again}; give it once")
