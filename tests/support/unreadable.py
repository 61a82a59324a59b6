"""Files that exist and cannot be read now, as after a change of rights or while a network disk is away."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from poslab.system.lock import LOCK_FILE

ERRORS = [errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE]


def cannot_read(monkeypatch: pytest.MonkeyPatch, path: Path, number: int) -> None:
    """Let every look at a file fail with this error; root may read any file, so its rights say nothing."""
    for module, name in ((os, "open"), (os, "stat"), ("io", "open"), ("builtins", "open")):
        target = module if module is os else __import__(str(module))
        real = getattr(target, name)

        def fails(file: Any, *arguments: Any, _real: Any = real, **options: Any) -> Any:
            if not isinstance(file, int) and os.fspath(file) == str(path):
                raise OSError(number, os.strerror(number), str(path))
            return _real(file, *arguments, **options)

        monkeypatch.setattr(target, name, fails)


def everything(folder: Path) -> dict[str, bytes]:
    """The files of a folder by their paths in it, without the one that is locked."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK_FILE)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
