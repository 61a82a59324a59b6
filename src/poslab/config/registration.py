"""Tells Hydra the schema and the names of run and sweep folders."""

import secrets
import time
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from poslab.config.identity import choice_of
from poslab.config.schema import TrainConfig


def _unique() -> str:
    """Second and four random characters: two runs started together do not meet in one folder."""
    letters = "abcdefghijkmnpqrstuvwxyz23456789"
    return time.strftime("%Y%m%d-%H%M%S-") + "".join(secrets.choice(letters) for _ in range(4))


def run_name(task: str, pos: str, d_model: Any, n_heads: Any, seed: Any, seeds: Any = 1) -> str:
    """A short, portable, unique folder name: what a person looks for first, then when."""
    copies = f"x{seeds}" if seeds != 1 else ""
    return f"{choice_of(task)}-{choice_of(pos)}-d{d_model}-h{n_heads}-s{seed}{copies}_{_unique()}"


def register() -> None:
    """Make the schema and the folder names known to Hydra."""
    ConfigStore.instance().store(name="schema", node=TrainConfig)
    # Cached: the folder that Hydra makes and the one that a second rank is told must be the same.
    OmegaConf.register_new_resolver("run_name", run_name, use_cache=True, replace=True)
    OmegaConf.register_new_resolver("sweep_name", lambda: _unique(), use_cache=True, replace=True)
