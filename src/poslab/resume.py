"""Going on with a run that was stopped: what may differ, and from which checkpoint."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from poslab.config import ConfigError, TrainConfig, flat
from poslab.ranks import is_second_rank
from poslab.results import CONFIG_FILE, COPIES, RESULT_FILE, RunFolder

log = logging.getLogger(__name__)

# What a run shows and how fast it goes, not what it computes: free to change from one start to the next.
PRESENTATION = (
    "resume",
    "sweep",
    "diagnostics",
    "logger",
    "trainer.progress_bar",
    "trainer.threads",
    "data.num_workers",
)

# Settings that came later: with this value a run is the one that older versions made without them.
ALWAYS_SO = {"seeds": 1, "deterministic": False, "trainer.num_nodes": 1}


class Start(NamedTuple):
    """Where a run begins: at step 0, or after the updates that a checkpoint holds.

    Attributes:
        checkpoint: to go on from.
        step: updates that it holds.
        seconds: what the run's earlier parts took.
    """

    checkpoint: Path | None
    step: int
    seconds: float = 0.0


def open_folder(job: TrainConfig, folder: RunFolder, overrides: Sequence[str]) -> Start | None:
    """Claim a new folder, or with ``resume=auto`` go on in one; None when its run is complete.

    Raises:
        ConfigError: the folder is another run's, or this run's with other settings.
    """
    if not (job.resume and folder.taken()):
        if not is_second_rank():
            folder.check_usable()
            folder.claim(job, overrides)
        return Start(None, 0)
    if not is_second_rank():
        # The first rank may be writing the file only now; that all ranks agree is checked when they meet.
        refuse_changes(folder, job)
    if stored_status(folder.path) == "completed":
        return None
    if (bundle := bundle_of(folder.path)) is not None:
        raise ConfigError(f"{folder.path} is one copy of the run in {bundle}; go on with that one, it holds them all")
    checkpoint = newest_checkpoint(folder)
    seconds = float(stored_result(folder.path).get("wall_seconds") or 0.0)
    if not is_second_rank():
        folder.mark_unfinished(job, overrides, seconds)
    return Start(checkpoint, 0 if checkpoint is None else step_of(checkpoint), seconds)


def bundle_of(folder: Path) -> Path | None:
    """The folder of the bundle that a folder is a copy of; None for any other."""
    parent = folder.absolute().parent
    return parent.parent if parent.name == COPIES and (parent.parent / CONFIG_FILE).exists() else None


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide the result, flat; two runs that agree in them are the same run."""
    return {
        key: value
        for key, value in flat(dict(settings)).items()
        if key != "defaults"
        and not any(key == part or key.startswith(f"{part}.") for part in PRESENTATION)
        and not (key in ALWAYS_SO and value == ALWAYS_SO[key])
    }


def model_settings(job: TrainConfig) -> dict[str, Any]:
    """The settings that the model is built from, flat: with others a checkpoint is another model's, even if it fits."""
    return flat({part: settings for part, settings in asdict(job).items() if part in ("pos", "task", "model")})


def job_key(job: TrainConfig) -> str:
    """A short name for the settings that decide the result: the same for the same job in every sweep."""
    text = json.dumps(identity(asdict(job)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def stored_settings(folder: Path) -> dict[str, Any]:
    """The settings in a run folder's ``config.yaml``.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    try:
        content = yaml.safe_load((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{folder / CONFIG_FILE} cannot be read ({type(error).__name__})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{folder / CONFIG_FILE} holds no configuration")
    return content


def stored_result(folder: Path) -> dict[str, Any]:
    """A run folder's ``result.json``; empty when there is none that can be read."""
    try:
        result = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return result if isinstance(result, dict) else {}


def stored_status(folder: Path) -> str | None:
    """The status in a run folder's ``result.json``; None when there is none that can be read."""
    return stored_result(folder).get("status")


def refuse_changes(folder: RunFolder, job: TrainConfig) -> None:
    """Refuse to go on with other settings than the run was started with.

    Raises:
        ConfigError: names each setting that differs, before and now.
    """
    before, now = identity(stored_settings(folder.path)), identity(asdict(job))
    missing = "not set"
    changes = [
        f"{key} was {before.get(key, missing)} and is {now.get(key, missing)}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key, missing) != now.get(key, missing)
    ]
    if changes:
        raise ConfigError(
            f"{folder.path} cannot go on with other settings: {'; '.join(changes)}; give the old ones or a new folder"
        )


def step_of(checkpoint: Path) -> int:
    """Optimiser updates that a checkpoint holds."""
    import torch

    return int(torch.load(checkpoint, map_location="cpu", weights_only=True)["global_step"])


def newest_checkpoint(folder: RunFolder) -> Path | None:
    """The checkpoint to go on from: the newest that can be read; one that cannot is named and passed over."""
    import torch

    candidates = sorted(folder.checkpoints.glob("*.ckpt"), key=lambda path: path.stat().st_mtime, reverse=True)
    # On one file system clock tick, last.ckpt is the one with all that was learned.
    candidates.sort(key=lambda path: path.name != "last.ckpt")
    for path in candidates:
        try:
            torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            log.warning("%s cannot be read (%s); trying the one before", path, type(error).__name__)
        else:
            return path
    return None
