"""Files that somebody else may have written are read as plain data, without waiting and without an end."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from poslab.errors import ConfigError
from poslab.runs.checkpoint import read_checkpoint
from poslab.runs.events import cut_events
from poslab.system.files import read_file
from poslab.system.reading import PlainLoader, read_bytes, read_json, read_yaml
from support.limits import in_time

READERS: dict[str, Callable[[Path], Any]] = {
    "bytes": lambda path: read_bytes(path, 10),
    "json": read_json,
    "yaml": read_yaml,
    "checkpoint": read_checkpoint,
    "events": lambda path: cut_events(path, 0, 0),
    "whole file": read_file,
}


@pytest.mark.parametrize("reader", [*READERS])
@pytest.mark.parametrize("kind", ["pipe", "zeros", "folder"])
def test_only_a_regular_file_is_read(kind: str, reader: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    make = {"pipe": os.mkfifo, "zeros": lambda path: path.symlink_to("/dev/zero"), "folder": Path.mkdir}
    make[kind](path)
    with in_time(20), pytest.raises((OSError, ConfigError), match="is not a regular file"):
        READERS[reader](path)


def test_no_more_is_read_than_was_asked_for_whatever_the_size_says(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_bytes(path, 4)
    # The system says that it has no bytes.
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_bytes(Path("/proc/self/status"), 4)


@pytest.mark.parametrize("text", ["{}", '{"a": [1, 2.5, null, true, "\\ud83d\\ude00"], "b": -12345678901234567890}'])
def test_plain_content_is_what_the_library_reads(text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    assert read_json(tmp_path / "file") == json.loads(text)
    (tmp_path / "file").write_text(json.dumps(json.loads(text), ensure_ascii=False), encoding="utf-8")
    assert read_yaml(tmp_path / "file") == read_json(tmp_path / "file") == json.loads(text)


def test_a_star_is_no_alias(tmp_path: Path) -> None:
    (tmp_path / "file").write_text('a: "*b"\nc: d*e\nf: 0x1F\ng: 1_000\nh: 1:30\n')
    assert read_yaml(tmp_path / "file") == {"a": "*b", "c": "d*e", "f": 31, "g": 1000, "h": 90}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &b [1]\nc: *b\n", "it has aliases"),
        ("a: " + ":".join(["1"] * 100_000), "a number of 199999 digits"),
        ("[" * 60 + "]" * 60, "nested too deeply"),
        ("!!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("a: [1", "expected"),
    ],
)
def test_yaml_that_is_not_plain_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    with in_time(20), pytest.raises(ValueError, match=said) as refused:
        read_yaml(tmp_path / "file")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('["\\ud800"]', "surrogates not allowed"),
        ('{"\\uDFFF": 1}', "surrogates not allowed"),
        ("[" * 100_000, "nested too deeply"),
        ("1" * 31, "a number of 31 digits"),
    ],
)
def test_json_that_is_not_plain_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(ValueError, match=said):
        read_json(tmp_path / "file")


def test_nothing_but_plain_data_is_built() -> None:
    assert not [tag for tag in PlainLoader.yaml_constructors if tag is not None and "python" in tag]
