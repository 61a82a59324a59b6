"""Another process that holds the lock of a folder."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from poslab.system.lock import FolderLock


@contextmanager
def held_by_another(folder: Path, seconds: float = 60.0, with_child: bool = False) -> Iterator[int]:
    """A forked process holds the lock, is killed after the block, and may leave a child of its own; yields its number.

    Args:
        folder: to lock.
        seconds: after which the process ends by itself.
        with_child: it has forked a child, which lives for some seconds more, as a data worker may.
    """
    reads, writes = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            FolderLock(folder).acquire()
            if with_child and os.fork() == 0:
                seconds = 3.0
            os.write(writes, b"x")
            time.sleep(seconds)
        finally:
            os._exit(0)
    os.close(writes)
    assert os.read(reads, 1) == b"x"
    try:
        yield process
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(reads)
