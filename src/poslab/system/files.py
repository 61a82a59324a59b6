"""Writes files whole or not at all, and checks that a folder can be written."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from poslab.errors import ConfigError

PART = ".part"
"""The suffix of a file while it is being written."""


def check_writable(folder: Path, key: str, room: int = 0) -> None:
    """Check that a folder, which may not exist yet, can be made and written.

    Args:
        folder: as the person gave it.
        key: the setting that chooses another folder.
        room: bytes that its files will take.

    Raises:
        ConfigError: names the folder and the reason.
    """
    # The folder does not exist yet, so test its nearest existing parent.
    path = folder.absolute()
    nearest = next(place for place in (path, *path.parents) if os.path.lexists(place))
    try:
        with tempfile.TemporaryFile(dir=nearest), suppress(FileNotFoundError):
            # Fails if the name is too long for the file system.
            os.lstat(path / "config.yaml")
    except OSError as error:
        raise ConfigError(
            f"cannot write to {folder} ({error.strerror}); choose a folder of yours with {key}="
        ) from error
    free = shutil.disk_usage(nearest).free
    if free < room:
        raise ConfigError(
            f"{folder} has {as_text(free)} free and the run needs about {as_text(room)} for its "
            f"checkpoints and pictures; make room, or choose a folder elsewhere with {key}="
        )


def as_text(size: float) -> str:
    """A number of bytes as readable text."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1e} PiB" if size >= 1e4 else f"{size:.1f} PiB"


def write_atomically(path: Path, content: bytes, durable: bool = False) -> None:
    """Write a temporary file beside the target and rename it, so that a reader sees the old content or the new.

    Args:
        path: of the file; its folder is made.
        content: the whole content.
        durable: survive a power cut too. It takes milliseconds, so only for files that cannot be made again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        beside.write_bytes(content)
        if durable:
            with open(beside, "r+b") as file:
                os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_first(path: Path, content: bytes) -> None:
    """Write a file in the same way, but only if it does not exist: of several processes exactly one succeeds.

    Raises:
        FileExistsError: another process was first.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        beside.write_bytes(content)
        try:
            os.link(beside, path)
        except FileExistsError:
            raise
        except OSError:
            # A file system without hard links.
            with open(path, "xb") as file:
                file.write(content)
    finally:
        beside.unlink(missing_ok=True)
