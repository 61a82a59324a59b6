"""Refuses classes of other packages in Hydra's part of a configuration, before Hydra builds anything from it.

A file that somebody else has written can be that part: one in ``--config-dir``, a stored run, a plug-in's choices.
"""

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from omegaconf import DictConfig, OmegaConf

from poslab.config.packages import PACKAGE, VARIABLE, lies_in, named_packages
from poslab.errors import ConfigError

BUILT_BY_HYDRA = ("callbacks", "hydra_logging", "job_logging", "launcher", "sweeper")
OURS = (PACKAGE, "hydra_plugins.poslab_launchers", "hydra_plugins.poslab_sweepers")
OF_PYTHON = ("logging.FileHandler", "logging.Formatter", "logging.NullHandler", "logging.StreamHandler")
"""The classes in Hydra's own choices of logging."""
STREAMS = ("ext://sys.stdout", "ext://sys.stderr")
CLASS_KEYS = ("_target_", "class", "()")
REFERENCE = re.compile(r"\$\{([\w.]+|now:[^${}]*|oc\.env:[^${}]*)\}")
SET_LATER = re.compile(r"hydra\.(runtime\.output_dir|job\.(num|id|name))|now:.*|oc\.env:.*")
"""References to texts and numbers that have no value yet, or another one at each start."""


def check_classes(config: DictConfig) -> None:
    """Refuse any class that Hydra would build and that is not from Hydra, from this package or from a named package.

    Args:
        config: as Hydra has composed it.

    Raises:
        ConfigError: one line that names the key, the class and the way out.
    """
    for part in BUILT_BY_HYDRA:
        node = OmegaConf.to_container(OmegaConf.masked_copy(config.hydra, part), resolve=False)[part]  # type: ignore[index, call-overload]
        for key, name, value in leaves(node, f"hydra.{part}"):
            if name in CLASS_KEYS:
                check_class(key, value)
            elif isinstance(value, str):
                check_text(key, value, config)


def leaves(node: Any, key: str, name: Any = "") -> Iterator[tuple[str, Any, Any]]:
    """Each value that is no mapping and no list, with its whole key and its own name, which may have a dot."""
    if isinstance(node, dict):
        for inner, value in node.items():
            yield from leaves(value, f"{key}.{inner}", inner)
    elif isinstance(node, list):
        for value in node:
            yield from leaves(value, key, name)
    else:
        yield key, name, node


def check_class(key: str, target: Any) -> None:
    """Refuse a name that is not that of a class of Hydra, of this package or of a named package.

    Raises:
        ConfigError: names the key, the class and the way out.
    """
    if target in OF_PYTHON:
        return
    allowed = ("hydra.experimental", "hydra._internal.core_plugins", *OURS, *named_packages())
    module, _, name = str(target).rpartition(".")
    if not lies_in(module, *allowed):
        parts = str(target).split(".")
        package = ".".join(parts[:2] if parts[0] == "hydra_plugins" else parts[:1])
        raise ConfigError(
            f"{key}={target} lies outside Hydra and the package {PACKAGE}, and classes of other packages are not "
            f"built; if you trust it, put {VARIABLE}={package} in front of the command"
        )
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{key}={target} does not exist ({error})") from error
    # Many modules import something that is not theirs, such as os.
    if not (isinstance(found, type) and lies_in(found.__module__, *allowed)):
        raise ConfigError(f"{key}={target} is not a class of its package, and nothing else is built")


def check_text(key: str, text: str, config: DictConfig) -> None:
    """Refuse a text that stands for something else: for a part of another configuration, or for a name in a module.

    Raises:
        ConfigError: names the key and the text.
    """

    def value(reference: re.Match[str]) -> str:
        named = reference.group(1)
        if SET_LATER.fullmatch(named):
            return ""
        found = OmegaConf.select(config, named, throw_on_resolution_failure=False)
        return str(found) if isinstance(found, (str, int, float)) else reference.group()

    plain = REFERENCE.sub(value, text)
    if "${" in plain:
        raise ConfigError(f"{key}={text} does not refer to one text or number; give the value itself")
    if plain.startswith(("ext:", "cfg:")) and plain not in STREAMS:
        raise ConfigError(f"{key}={text} names something else than {' or '.join(STREAMS)}; only these are looked up")
