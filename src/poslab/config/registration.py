"""Registers the schema and the names of run and sweep folders with Hydra.

Every name begins with the package's own: another Hydra program that uses this package has names of its own.
"""

import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from poslab.config.identity import choice_of
from poslab.config.schema import TrainConfig


def _unique() -> str:
    """The time and four random characters, so that two runs started in the same second have different folders."""
    letters = "abcdefghijkmnpqrstuvwxyz23456789"
    return time.strftime("%Y%m%d-%H%M%S-") + "".join(secrets.choice(letters) for _ in range(4))


def run_name(task: str, pos: str, d_model: Any, n_heads: Any, seed: Any, seeds: Any = 1) -> str:
    """A short, portable, unique folder name: the settings that a person looks for first, then the time."""
    replicas = f"x{seeds}" if seeds != 1 else ""
    return f"{choice_of(task)}-{choice_of(pos)}-d{d_model}-h{n_heads}-s{seed}{replicas}_{_unique()}"


@dataclass
class GridSweeperConf:
    """The types of ``conf/hydra/sweeper/grid.yaml``."""

    _target_: str
    params: dict[str, str] | None
    jobs: list[str] | None


@dataclass
class ObjectiveConf:
    """A number of a job's result and the direction in which it improves."""

    metric: str = "val/loss"
    direction: str = "minimize"


@dataclass
class OptunaSweeperConf:
    """The types of ``conf/hydra/sweeper/optuna.yaml``; see `poslab.sweeps.search.options.Options`."""

    _target_: str
    _convert_: str
    n_trials: int
    n_jobs: int
    objectives: list[ObjectiveConf]
    sampler: str
    sampler_options: Any  # Any, because the keys of a typed dict could not be given without a plus
    pruner: str
    pruner_options: Any
    seed: int
    storage: str | None
    params: dict[str, str]


def in_words(group: str, *, _root_: DictConfig) -> str:
    """The choices of a group, a line each, with the comment that its file begins with; for --help."""
    lines = []
    for source in _root_.hydra.runtime.config_sources:
        for file in sorted(Path(source.path, group).glob("*.yaml")) if source.schema == "file" else ():
            first = file.read_text(encoding="utf-8").partition("\n")[0]
            lines.append(f"  {file.stem:<15}{first.removeprefix('#') if first.startswith('#') else ''}")
    return "\n".join(lines)


def register() -> None:
    """Register the types of the configuration, and the resolvers of folder names and of --help."""
    store = ConfigStore.instance()
    store.store(name="poslab_schema", node=TrainConfig)
    store.store(group="hydra/sweeper", name="poslab_grid_schema", node=GridSweeperConf)
    store.store(group="hydra/sweeper", name="poslab_optuna_schema", node=OptunaSweeperConf)
    # Cached, because a name must be the same each time Hydra resolves it.
    OmegaConf.register_new_resolver("poslab_run_name", run_name, use_cache=True, replace=True)
    OmegaConf.register_new_resolver("poslab_sweep_name", _unique, use_cache=True, replace=True)
    OmegaConf.register_new_resolver("poslab_in_words", in_words, replace=True)
