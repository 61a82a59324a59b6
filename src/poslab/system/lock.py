"""Locks of folders: of several processes that want to write to one folder, one does, also over a network file system.

The lock is a POSIX record lock on a file in the folder. The system releases it when the process ends, also by
``kill -9``. Forked children, such as data workers, do not inherit it, so those that live on do not hold it.
"""

import errno
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

from poslab.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

LOCK_FILE = ".lock"
TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
"""Errors of a lock that another process holds."""
_held: dict[str, int] = {}
"""The locks of this process, by path, with its number: a forked child has the dictionary and not the locks."""
_warned: set[str] = set()


class FolderLock:
    """The right to write to a folder. The file stays, because removing it would open a gap between two processes.

    Args:
        folder: made when the lock is taken.

    Attributes:
        patience: seconds to wait for another process to end.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.patience = 0.0
        self._handle: int | None = None
        self._name = ""

    def acquire(self) -> None:
        """Take the lock; does nothing if this object has it.

        Raises:
            ConfigError: another command has it; says which.
        """
        if self._handle is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._name = os.path.realpath(self.folder / LOCK_FILE)
        # Not opened again in this process: closing any descriptor of the file would release the lock.
        if _held.get(self._name) == os.getpid():
            raise in_use(self.folder, "this process")
        handle = os.open(self._name, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._wait_for(handle)
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle
        _held[self._name] = os.getpid()

    def close(self) -> None:
        """Release the lock, if this object has it."""
        if self._handle is None:
            return
        os.close(self._handle)
        self._handle = None
        _held.pop(self._name, None)

    def _wait_for(self, handle: int) -> None:
        deadline = time.monotonic() + self.patience
        while True:
            try:
                lock(handle)
            except OSError as error:
                if error.errno not in TAKEN:
                    warn_once(self.folder, error)
                    return
                # The other process may have taken the lock and not yet written who it is.
                time.sleep(0.1)
                if time.monotonic() < deadline:
                    continue
                raise in_use(self.folder, holder(handle)) from error
            sign(handle)
            return


def lock(handle: int) -> None:
    """Lock an open file for this process.

    Raises:
        OSError: another process holds it (see `TAKEN`), or the file system has no locks.
    """
    if fcntl is not None:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    import msvcrt

    locking: Any = msvcrt
    # Behind the text, because the locked bytes of a file cannot be read there.
    os.lseek(handle, 1 << 20, os.SEEK_SET)
    locking.locking(handle, locking.LK_NBLCK, 1)


def sign(handle: int) -> None:
    """Write into the lock's file who holds it."""
    text = f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
    try:
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, text.encode())
    except OSError:
        # On a full disk: the lock itself needs no room.
        log.debug("the lock is not signed", exc_info=True)


def holder(handle: int) -> str:
    """Who holds a lock, as its file says."""
    os.lseek(handle, 0, os.SEEK_SET)
    return os.read(handle, 200).decode(errors="replace").strip() or "another process"


def in_use(folder: Path, by: str) -> ConfigError:
    return ConfigError(f"{folder} is in use by {by}; wait until it has ended, or end it")


def warn_once(folder: Path, error: OSError) -> None:
    """Say once that a file system has no locks."""
    if not _warned:
        log.warning(
            "%s cannot be locked (%s); do not start a second command on this folder while this one runs",
            *(folder, error.strerror),
        )
    _warned.add(str(folder))
