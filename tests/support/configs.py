"""Configurations as the commands compose them, and the choices in conf."""

from copy import deepcopy
from functools import cache
from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import poslab.config.schema  # noqa: F401  (registers the schema)
from poslab.cli.explain import explain
from poslab.preflight.checks import preflight
from support.paths import CONF

GROUPS = {path.name for path in CONF.iterdir() if path.is_dir()}
NOT_THERE = object()


@cache
def composed(*overrides: str) -> DictConfig:
    """What Hydra composes, to be copied before anything is changed in it."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra_compose("train", overrides=list(overrides))


@cache
def parsed(override: str) -> Override:
    return OverridesParser.create().parse_override(override)


def sets_a_value(override: Override, config: DictConfig) -> bool:
    """Whether this changes the value of a key that the configuration has, and decides nothing about its files."""
    if override.type is not OverrideType.CHANGE or override.is_sweep_override() or override.package is not None:
        return False
    found = OmegaConf.select(config, override.key_or_group, default=NOT_THERE)
    return found is not NOT_THERE and not isinstance(found, DictConfig)


def compose(*overrides: str) -> DictConfig:
    """The configuration that ``train.py`` would get.

    Hydra takes a fifth of a second, so it composes each choice of files once; plain values are set as it sets them.
    """
    try:
        every = [parsed(override) for override in overrides]
        choices = [text for text, one in zip(overrides, every, strict=True) if one.key_or_group in GROUPS]
        config = deepcopy(composed(*choices))
        values = [one for one in every if one.key_or_group not in GROUPS]
        if all(sets_a_value(one, config) for one in values):
            for one in values:
                OmegaConf.update(config, one.key_or_group, one.value(), merge=True)
            return config
    except (HydraException, OmegaConfBaseException):
        pass  # whatever is wrong, Hydra says it
    return deepcopy(composed(*overrides))


CHOICES = [
    # A folder within a group is a part of the choice: experiment=claims/depth.
    tuple(path.relative_to(CONF).with_suffix("").as_posix().split("/", maxsplit=1))
    for path in sorted(CONF.rglob("*.yaml"))
    if path.parent != CONF and not path.is_relative_to(CONF / "hydra")
]


def refusal(folder: Path, *overrides: str) -> str:
    """The line that refuses these overrides."""
    try:
        preflight(compose(*overrides), folder)
    except Exception as error:
        return explain(error, CONF)
    raise AssertionError(f"{overrides} passed")
