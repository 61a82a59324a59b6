"""Files are written whole or not at all."""

import os
from pathlib import Path

import pytest

from poslab.system.files import write_atomically


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    target = tmp_path / "new" / "result.json"
    write_atomically(target, b"old")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(target, b"new")
    assert [path.name for path in target.parent.iterdir()] == ["result.json"]
    assert target.read_bytes() == b"old"
