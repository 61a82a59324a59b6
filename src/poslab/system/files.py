"""Files that are written whole or not at all, and the check that a folder can be written."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from poslab.errors import ConfigError

PART = ".part"
"""What the name of a file ends in while it is being written."""


def check_writable(folder: Path, key: str, room: int = 0) -> None:
    """Make sure that a folder, which need not be there, can be made and written, before anything is.

    Args:
        folder: as it was given.
        key: the setting that chooses another.
        room: bytes that its files will take.

    Raises:
        ConfigError: names the folder and the reason.
    """
    # Nothing is made yet: the nearest folder that is there says whether this one can be.
    path = folder.absolute()
    nearest = next(place for place in (path, *path.parents) if os.path.lexists(place))
    try:
        with tempfile.TemporaryFile(dir=nearest), suppress(FileNotFoundError):
            # Finds a name that the file system has no room for.
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
    """Bytes as a person says them."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1e} PiB" if size >= 1e4 else f"{size:.1f} PiB"


def write_atomically(path: Path, content: bytes, durable: bool = False) -> None:
    """Write beside the target and rename, so that a reader sees the old file or the new one, never half of one.

    Args:
        path: of the file; its folder is made.
        content: all of it.
        durable: also where the machine itself goes down. Takes milliseconds, so only for what cannot be made again.
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
    """The same for a file that only one process may be the first to write.

    Raises:
        FileExistsError: another was first.
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
