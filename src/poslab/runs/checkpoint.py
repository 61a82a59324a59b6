"""Reads checkpoint files and finds the newest one of a run."""

import io
import logging
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from poslab.errors import ConfigError, lacks_memory
from poslab.runs.folder import RunFolder
from poslab.system.files import DAMAGED, MISSING, read_file, unreadable

log = logging.getLogger(__name__)


class Saved(NamedTuple):
    """A checkpoint that can be read.

    Attributes:
        path: of the file.
        step: the number of optimiser updates up to it.
        settings: the settings that decide its result, flat; None if the file does not contain them.
        events: the size in bytes of each event file when the checkpoint was saved, by path in the run folder; None if
            the file does not contain them.
        tables: the text of each ``metrics.csv`` when the checkpoint was saved, by path in the run folder; None if the
            file does not contain them.
    """

    path: Path
    step: int
    settings: dict[str, Any] | None = None
    events: dict[str, int] | None = None
    tables: dict[str, str] | None = None


def run_folder_of(checkpoint: Path) -> Path:
    """The folder of the run that a checkpoint belongs to, if the file was not moved."""
    return checkpoint.absolute().parents[1]


def checkpoint_content(path: Path) -> dict[str, Any]:
    """Read the content of a checkpoint, as plain values only.

    Raises:
        FileNotFoundError, NotADirectoryError: it does not exist.
        ConfigError: it cannot be read now.
        Exception: the file was read; it is cut short, damaged, or not a checkpoint.
    """
    import torch

    # Read first: the libraries below report an error of the disk as a damaged file.
    file = io.BytesIO(read_file(path))
    try:
        # torch itself does not detect a changed byte.
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"{damaged} is damaged")
        file.seek(0)
        return dict(torch.load(file, map_location="cpu", weights_only=True))
    except Exception as error:
        if lacks_memory(error):
            raise unreadable(path, error) from error
        raise


def read_checkpoint(path: Path) -> Saved:
    """Read what a run needs to know of a checkpoint; raises what `checkpoint_content` raises."""
    content = checkpoint_content(path)
    run = content.get("run") or {}
    return Saved(path, int(content["global_step"]), run.get("settings"), run.get("events"), run.get("tables"))


def model_weights(content: Mapping[str, Any]) -> dict[str, Any]:
    """The weights in the content of a checkpoint file, by their names in the model."""
    return {name.removeprefix("model."): value for name, value in content["state_dict"].items()}


def step_of(checkpoint: Path) -> int:
    """The number of optimiser updates up to a checkpoint."""
    return read_checkpoint(checkpoint).step


def newest_checkpoint(folder: RunFolder) -> tuple[Saved | None, list[Path]]:
    """The checkpoint to resume from: of those that are whole, the one with the most updates; None without any.

    Returns:
        the checkpoint, and the damaged files, which are also reported in a warning.

    Raises:
        ConfigError: a file cannot be read now; an older one must not take its place.
    """
    found, damaged = [], []
    for path in (folder.checkpoints / "last.ckpt", folder.checkpoints / "best.ckpt"):
        try:
            found.append(read_checkpoint(path))
        except MISSING:
            continue
        except ConfigError:
            raise
        except Exception as error:
            damaged.append(path)
            log.warning(
                "%s cannot be read (%s); it is kept as %s%s, and the other checkpoint is used if there is one",
                *(path, type(error).__name__, path.name, DAMAGED),
            )
    # If both have the same step, the first.
    return max(found, key=lambda saved: saved.step, default=None), damaged
