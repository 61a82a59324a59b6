"""A sweep's folder: the list of its jobs, and what is kept of failed ones."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError
from poslab.runs.names import SUPERSEDED
from poslab.runs.result import stored_result
from poslab.system.devices import check_device
from poslab.system.files import check_writable

PLAN_FILE = "sweep.json"


@dataclass
class Job:
    """One combination of the grid.

    Attributes:
        overrides: what makes it different, as typed.
        key: of its resolved configuration; empty for one that cannot be run.
        name: of its folder.
        reason: why it cannot be run, else empty.
        state: the status in its folder before this sweep began; ``new`` when there was none.
    """

    overrides: list[str]
    key: str = ""
    name: str = ""
    reason: str = ""
    state: str = "new"


def lost_copies(folder: Path) -> str:
    """Which copies of a completed job with ``seeds`` diverged, as its error says; empty for none, and any other job."""
    result = stored_result(folder)
    return str(result.get("error") or "") if result.get("status") == "completed" else ""


def sweep_folder(config: DictConfig) -> Path:
    """The folder of a new sweep, or the one that ``sweep.resume`` names.

    Raises:
        ConfigError: there is no sweep in it.
    """
    new = Path(config.hydra.sweep.dir)
    wanted = config.sweep.resume
    if wanted is None:
        check_writable(new, "hydra.sweep.dir")
        if (new / PLAN_FILE).exists():
            raise ConfigError(f"{new} already holds a sweep; go on with it by sweep.resume={new}, or choose another")
        return new
    if wanted == "latest":
        plans = sorted(new.parent.glob(f"*/{PLAN_FILE}"), key=lambda path: path.stat().st_mtime)
        if not plans:
            raise ConfigError(f"sweep.resume=latest, but there is no sweep in {new.parent}")
        return plans[-1].parent
    if not os.path.exists(Path(wanted) / PLAN_FILE):
        raise ConfigError(f"sweep.resume={wanted} holds no sweep ({PLAN_FILE} is missing); give the folder of one")
    return Path(wanted)


def supersede(folder: Path, name: str) -> None:
    """Put a failed job's folder aside, without the events that a dashboard would show as a run of their own."""
    target = folder / SUPERSEDED
    target.mkdir(exist_ok=True)
    attempt = 1 + sum(1 for _ in target.glob(f"{name}-*"))
    aside = target / f"{name}-{attempt}"
    (folder / name).rename(aside)
    for events in aside.rglob("events.out.tfevents.*"):
        events.unlink()


def invalid_entry(job: Job) -> dict[str, Any]:
    return {"overrides": job.overrides, "reason": job.reason}


def as_json(content: Any) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


def check_place(launcher: Launcher, job: TrainConfig) -> None:
    """Refuse a job whose devices are missing where the launcher would run it: Hydra's own launcher runs it here.

    Raises:
        ConfigError: names the device and the way out.
    """
    check = getattr(launcher, "check_devices", check_device)
    check(job.trainer.accelerator, job.trainer.devices)
