"""Configurations as the commands compose them, and the choices in conf."""

from copy import deepcopy
from functools import cache
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from poslab.cli.explain import explain
from poslab.preflight.checks import preflight
from support.paths import CONF


def compose(*overrides: str):
    """The configuration that ``train.py`` would get."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    import poslab.config.schema  # noqa: F401  (registers the schema)

    with initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra_compose("train", overrides=list(overrides))


CHOICES = [
    # A folder within a group is a part of the choice: experiment=claims/depth.
    tuple(path.relative_to(CONF).with_suffix("").as_posix().split("/", maxsplit=1))
    for path in sorted(CONF.rglob("*.yaml"))
    if path.parent != CONF and not path.is_relative_to(CONF / "hydra")
]


@cache
def default() -> DictConfig:
    return compose()


def given(*overrides: str) -> DictConfig:
    """The configuration with these overrides; composed by Hydra only where that can matter, for it is slow."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    plain = [one for one in parsed if one.type is OverrideType.CHANGE and not one.is_sweep_override()]
    if len(plain) < len(parsed) or any(OmegaConf.select(default(), one.key_or_group) is None for one in plain):
        return compose(*overrides)
    if any(isinstance(OmegaConf.select(default(), one.key_or_group), DictConfig) for one in plain):
        return compose(*overrides)
    config = deepcopy(default())
    try:
        for one in plain:
            OmegaConf.update(config, one.key_or_group, one.value())
    except OmegaConfBaseException:
        return compose(*overrides)  # for the message that a person gets
    return config


def refusal(folder: Path, *overrides: str) -> str:
    """The line that refuses these overrides."""
    try:
        preflight(given(*overrides), folder)
    except Exception as error:
        return explain(error, CONF)
    raise AssertionError(f"{overrides} passed")
