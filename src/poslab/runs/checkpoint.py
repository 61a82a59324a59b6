"""Checkpoint files: what one says about its run, and the newest one of a run."""

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
        step: optimiser updates that it holds.
        settings: those that decided its result, flat; None where the file does not say.
        events: size of each event file of the run when it was saved, by path in the run folder; None likewise.
    """

    path: Path
    step: int
    settings: dict[str, Any] | None = None
    events: dict[str, int] | None = None


def run_folder_of(checkpoint: Path) -> Path:
    """The folder of the run that a checkpoint belongs to, if it lies where it was saved."""
    return checkpoint.absolute().parents[1]


def read_checkpoint(path: Path) -> Saved:
    """What a checkpoint is, read as a whole, as plain values only.

    Raises:
        Exception: it is cut short, damaged, or no checkpoint.
    """
    import torch

    # torch itself does not notice a changed byte.
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
    """Optimiser updates that a checkpoint holds."""
    return read_checkpoint(checkpoint).step


def newest_checkpoint(folder: RunFolder) -> Saved | None:
    """The checkpoint to go on from: of those that can be read, the one with most updates; the others are named."""
    found = []
    for path in (folder.checkpoints / "last.ckpt", folder.checkpoints / "best.ckpt"):
        try:
            found.append(read_checkpoint(path))
        except FileNotFoundError:
            continue
        except Exception as error:
            log.warning("%s cannot be read (%s); trying the one before", path, type(error).__name__)
    # Of two with the same, the first.
    return max(found, key=lambda saved: saved.step, default=None)
