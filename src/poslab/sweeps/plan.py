"""The folder of a sweep and the jobs that it lists."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from poslab.config.overrides import job_overrides
from poslab.errors import ConfigError
from poslab.runs.names import EVENTS, SUPERSEDED
from poslab.system.files import check_writable

PLAN_FILE = "sweep.json"


@dataclass
class Job:
    """One combination of settings.

    Attributes:
        overrides: the settings of this job, as typed.
        key: of its resolved configuration; empty where it cannot be run.
        name: of its folder.
        reason: why it cannot be run, else empty.
        state: the status in its folder before this sweep began; ``new`` if there was none.
    """

    overrides: list[str]
    key: str = ""
    name: str = ""
    reason: str = ""
    state: str = "new"

    @property
    def typed(self) -> str:
        """The overrides without those of Hydra and of the sweep."""
        return " ".join(job_overrides(self.overrides))


def sweep_folder(config: DictConfig) -> Path:
    """The folder of a new sweep, or the one that ``sweep.resume`` names.

    Raises:
        ConfigError: the new folder holds a sweep already, or the named one holds none.
    """
    new = Path(config.hydra.sweep.dir)
    wanted = config.sweep.resume
    if wanted is None:
        check_writable(new, "hydra.sweep.dir")
        if (new / PLAN_FILE).exists():
            raise ConfigError(f"{new} already holds a sweep; resume it by sweep.resume={new}, or choose another folder")
        return new
    if wanted == "latest":
        plans = sorted(new.parent.glob(f"*/{PLAN_FILE}"), key=lambda path: path.stat().st_mtime)
        if not plans:
            raise ConfigError(f"sweep.resume=latest, but there is no sweep in {new.parent}")
        return plans[-1].parent
    # Path.exists raises where a name is too long or a folder must not be read.
    if not os.path.exists(Path(wanted) / PLAN_FILE):
        raise ConfigError(f"sweep.resume={wanted} holds no sweep ({PLAN_FILE} is missing); give the folder of one")
    return Path(wanted)


def supersede(folder: Path, name: str) -> None:
    """Move a failed job's folder aside and remove its events, which a dashboard would show as another run."""
    target = folder / SUPERSEDED
    target.mkdir(exist_ok=True)
    attempt = 1 + sum(1 for _ in target.glob(f"{name}-*"))
    aside = target / f"{name}-{attempt}"
    (folder / name).rename(aside)
    for events in aside.rglob(EVENTS):
        events.unlink()


def as_json(content: Any) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"
