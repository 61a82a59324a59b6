"""Reads checkpoint files and finds the newest one of a run."""

import logging
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from poslab.runs.folder import RunFolder

log = logging.getLogger(__name__)


class Saved(NamedTuple):
    """A checkpoint that can be read.

    Attributes:
        path: of the file.
        step: the number of optimiser updates up to it.
        settings: the settings that decide its result, flat; None if the file does not contain them.
        events: the size in bytes of each event file when the checkpoint was saved, by path in the run folder; None if
            the file does not contain them.
    """

    path: Path
    step: int
    settings: dict[str, Any] | None = None
    events: dict[str, int] | None = None


def run_folder_of(checkpoint: Path) -> Path:
    """The folder of the run that a checkpoint belongs to, if the file was not moved."""
    return checkpoint.absolute().parents[1]


def read_checkpoint(path: Path) -> Saved:
    """Read a whole checkpoint, as plain values only.

    Raises:
        Exception: the file is cut short, damaged, or not a checkpoint.
    """
    import torch

    # torch itself does not detect a changed byte.
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"{damaged} is damaged")
    content = torch.load(path, map_location="cpu", weights_only=True)
    run = content.get("run") or {}
    return Saved(path, int(content["global_step"]), run.get("settings"), run.get("events"))


def model_weights(content: Mapping[str, Any]) -> dict[str, Any]:
    """The weights in the content of a checkpoint file, by their names in the model."""
    return {name.removeprefix("model."): value for name, value in content["state_dict"].items()}


def step_of(checkpoint: Path) -> int:
    """The number of optimiser updates up to a checkpoint."""
    return read_checkpoint(checkpoint).step


def newest_checkpoint(folder: RunFolder) -> Saved | None:
    """The checkpoint to resume from: of those that can be read, the one with the most updates; None without any.

    A file that cannot be read is reported in a warning.
    """
    found = []
    for path in (folder.checkpoints / "last.ckpt", folder.checkpoints / "best.ckpt"):
        try:
            found.append(read_checkpoint(path))
        except FileNotFoundError:
            continue
        except Exception as error:
            log.warning("%s cannot be read (%s); trying the one before", path, type(error).__name__)
    # If both have the same step, the first.
    return max(found, key=lambda saved: saved.step, default=None)
