"""Registers the schema and the names of run and sweep folders with Hydra."""

import secrets
import time
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

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


def register() -> None:
    """Register the schema and the resolvers of folder names."""
    store = ConfigStore.instance()
    store.store(name="schema", node=TrainConfig)
    # Hydra copies all that it has registered for every group that --help lists and every job that a sweep composes. The
    # store hands out copies of its nodes anyway, and half of the time of --help went into copying it.
    store.__deepcopy__ = lambda memo: store  # type: ignore[attr-defined]
    # Cached, because a name must be the same each time Hydra resolves it.
    OmegaConf.register_new_resolver("run_name", run_name, use_cache=True, replace=True)
    OmegaConf.register_new_resolver("sweep_name", _unique, use_cache=True, replace=True)
