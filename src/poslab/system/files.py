"""Reads files whole, writes them whole or not at all, and checks that a folder can be written.

A file that cannot be looked at now (no rights, a network disk that is away, no memory) is not taken for a missing one.
"""

import errno
import itertools
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from poslab.errors import ConfigError

PART = ".part"
"""The suffix of a file while it is being written."""
DAMAGED = ".damaged"
"""The suffix of a file that could not be used and was put aside."""
MISSING = (FileNotFoundError, NotADirectoryError)
NO_NAMES = (errno.ENAMETOOLONG, errno.EINVAL)
"""Of paths that no file can have."""


def is_there(path: Path) -> bool:
    """Whether a file or folder exists.

    Raises:
        ConfigError: it cannot be looked at now.
    """
    try:
        os.stat(path)
    except (*MISSING, ValueError):
        return False
    except OSError as error:
        if error.errno in NO_NAMES:
            return False
        raise unreadable(path, error) from error
    return True


def read_file(path: Path) -> bytes:
    """Read a whole file.

    Raises:
        FileNotFoundError, NotADirectoryError: it does not exist.
        ConfigError: it cannot be read now, or is not a file.
    """
    try:
        # A pipe would wait for its writer.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise ConfigError(f"{path} is not a regular file; nothing was changed: move it away and try again")
            with open(handle, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(handle)
    except MISSING:
        raise
    except (OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno in NO_NAMES:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error
        raise unreadable(path, error) from error


def unreadable(path: Path, error: BaseException) -> ConfigError:
    """The refusal of a command whose file or folder exists, or may exist, and cannot be read now."""
    reason = (error.strerror if isinstance(error, OSError) else "") or "not enough memory"
    return ConfigError(
        f"{path} cannot be read now ({reason}), and nothing was changed; repeat the command when it can be read"
    )


def put_aside(path: Path) -> Path:
    """Rename a file that cannot be used, so that it is kept; returns its new path."""
    names = (f"{path.name}{DAMAGED}{'' if number == 1 else f'-{number}'}" for number in itertools.count(1))
    aside = next(one for one in map(path.with_name, names) if not os.path.lexists(one))
    path.rename(aside)
    return aside


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
    if any("\ud800" <= letter <= "\udfff" for letter in str(path)):
        # Python's notation for such bytes, which the writers of the files do not take.
        raise ConfigError(f"cannot write to {path}: the name has bytes that are not UTF-8; choose a folder with {key}=")
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


def write_atomically(path: Path, content: bytes, durable: bool = False, make_folder: bool = True) -> None:
    """Write a temporary file beside the target and rename it, so that a reader sees the old content or the new.

    Args:
        path: of the file.
        content: the whole content.
        durable: survive a power cut too. It takes milliseconds, so only for files that cannot be made again.
        make_folder: make the folder of the file.
    """
    if make_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        _write_durably(beside, content) if durable else beside.write_bytes(content)
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
        _write_durably(beside, content)
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


def _write_durably(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
