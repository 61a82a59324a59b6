"""Of several processes that want to write to a folder, one does; the others say which."""

import errno
import fcntl
import os
import re
import socket
import time
from pathlib import Path

import pytest

from poslab.errors import ConfigError
from poslab.system import lock
from poslab.system.lock import LOCK_FILE, FolderLock
from support.holding import held_by_another


@pytest.mark.parametrize("with_child", [False, True])
def test_a_lock_says_who_holds_it_and_ends_with_its_process(with_child: bool, tmp_path: Path) -> None:
    """By ``kill -9``, and while a child that inherited the open file lives on."""
    mine = FolderLock(tmp_path)
    with held_by_another(tmp_path, with_child=with_child) as process:
        with pytest.raises(ConfigError) as refused:
            mine.acquire()
        said = re.fullmatch(
            rf"{tmp_path} is in use by process (\d+) on (\S+) since [-\d]+ [:\d]+; wait until it has ended, or end it",
            str(refused.value),
        )
        assert said, str(refused.value)
        assert (int(said[1]), said[2]) == (process, socket.gethostname())
    mine.acquire()
    assert f"process {os.getpid()} on" in (tmp_path / LOCK_FILE).read_text()
    mine.close()


def test_within_one_process_too(tmp_path: Path) -> None:
    """Such locks do not exclude the process itself, and closing its second descriptor would release the first."""
    first, second = FolderLock(tmp_path / "new" / "folder"), FolderLock(tmp_path / "new" / "." / "folder")
    first.acquire()
    first.acquire()
    with pytest.raises(ConfigError, match="in use by this process"):
        second.acquire()
    # A forked child has copied what this process knows, and not its locks.
    child = os.fork()
    if child == 0:
        try:
            FolderLock(tmp_path / "new" / "folder").acquire()
        except ConfigError as refused:
            os._exit(7 if f"process {os.getppid()} on" in str(refused) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    first.close()
    second.acquire()
    second.close()
    second.close()


def test_who_is_patient_gets_it_when_the_other_ends(tmp_path: Path) -> None:
    mine = FolderLock(tmp_path)
    mine.patience = 20.0
    with held_by_another(tmp_path, seconds=0.3):
        began = time.monotonic()
        mine.acquire()
        assert time.monotonic() - began < 10
    mine.close()


def test_without_locks_the_command_goes_on_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", none)
    monkeypatch.setattr(lock, "_warned", set())
    for name in ("a", "b"):
        one = FolderLock(tmp_path / name)
        one.acquire()
        one.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'a'} cannot be locked (No locks available); do not start a second command on this folder while "
        "this one runs"
    ]
