"""Reads files that somebody else may have written: regular files of bounded size, as plain data."""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import yaml

from poslab.system.files import as_text

MOST_YAML_BYTES = 2**20
MOST_JSON_BYTES = 2**24
MOST_DIGITS = 30
"""Of a whole number: Python reads very long ones slowly, and does not write them at all."""
MOST_LEVELS = 50

# The parser in C is much faster, but PyYAML may have been built without it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class PlainLoader(_Loader):
    """Reads YAML without numbers that are too long."""

    def whole_number(self, node: yaml.ScalarNode) -> int:
        check_digits(node.value)
        return int(self.construct_yaml_int(node))


PlainLoader.add_constructor("tag:yaml.org,2002:int", PlainLoader.whole_number)


def check_regular(path: Path, most_bytes: int | None = None) -> None:
    """Refuse anything but a regular file, or a link to one: reading a pipe waits, and a device may have no end.

    Raises:
        OSError: the file does not exist or cannot be examined, is of another kind, or has more than ``most_bytes``.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "it is not a regular file", str(path))
    if most_bytes is not None and found.st_size > most_bytes:
        raise OSError(0, f"it is larger than {as_text(most_bytes)}", str(path))


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """Read a regular file.

    Raises:
        OSError: see `check_regular`.
    """
    check_regular(path, most_bytes)
    with open(path, "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(0, f"it is larger than {as_text(most_bytes)}", str(path))
    return content


def read_yaml(path: Path) -> Any:
    """Read a YAML file as plain data.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not YAML or not plain; in one line.
    """
    text = read_bytes(path, MOST_YAML_BYTES).decode()
    try:
        # With aliases a small file can stand for a content of any size.
        if "*" in text and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, PlainLoader)):
            raise ValueError("it has aliases")
        content = yaml.load(text, PlainLoader)
    except (yaml.YAMLError, RecursionError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    check_plain(content)
    check_characters(text, content)
    return content


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not JSON or not plain; in one line.
    """
    return parsed_json(read_bytes(path, MOST_JSON_BYTES))


def parsed_json(content: bytes) -> Any:
    """The content of a JSON file.

    Raises:
        ValueError: it is not JSON or not plain; in one line.
    """
    text = content.decode()
    try:
        parsed = json.loads(text, parse_int=whole_number)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    check_plain(parsed)
    check_characters(text, parsed)
    return parsed


def whole_number(digits: str) -> int:
    check_digits(digits)
    return int(digits)


def check_digits(text: str) -> None:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"it has a number of {len(text)} digits")


def check_plain(content: Any, level: int = 1) -> None:
    """Refuse names that are not texts, and very many levels, which functions that call themselves cannot follow."""
    if level > MOST_LEVELS:
        raise ValueError("it is nested too deeply")
    if isinstance(content, dict) and not all(isinstance(name, str) for name in content):
        raise ValueError("it has a name that is not a text")
    for value in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        if isinstance(value, (dict, list)):
            check_plain(value, level + 1)


def check_characters(text: str, content: Any) -> None:
    """Refuse content with half a character, which no file and no terminal takes; only this notation can be one."""
    if re.search(r"\\u[dD][89a-fA-F]", text):
        json.dumps(content, ensure_ascii=False, default=str, skipkeys=True).encode()


def readable(name: str) -> str:
    """The name of a file as text: bytes that are not UTF-8 are written as ``\\xff``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
