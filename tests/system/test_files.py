"""Files are written whole or not at all."""

import os
from pathlib import Path

import pytest

from poslab.errors import ConfigError
from poslab.system.files import as_text, check_writable, write_atomically


def test_a_folder_whose_name_is_not_utf_8_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = tmp_path / os.fsdecode(b"l\xe4ufe")
    place.mkdir()
    monkeypatch.chdir(place)
    with pytest.raises(ConfigError, match=r"bytes that are not UTF-8; choose a folder with hydra\.run\.dir="):
        check_writable(Path("outputs/run"), "hydra.run.dir")
    check_writable(tmp_path / "l\u00e4ufe", "hydra.run.dir")


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


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (3 * 2**40, "3.0 TiB"),
        (2.0**53, "8.0 PiB"),
        (2.0**80, "1.1e+09 PiB"),
    ],
)
def test_bytes_as_a_person_says_them(size: float, text: str) -> None:
    assert as_text(size) == text
