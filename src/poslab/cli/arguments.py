"""``key=value`` arguments of the commands that use a run, without Hydra.

A value is taken as it is typed, so that one with spaces needs the quotes of the shell only.
"""

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from poslab.cli.console import one_line_errors
from poslab.config.rules import did_you_mean
from poslab.errors import ConfigError
from poslab.system.startup import print_anything, quick_exit


class Option(NamedTuple):
    """One key of a command.

    Attributes:
        help: what ``--help`` says about the key.
        read: turns the text into the value; raises ValueError with a description of valid texts.
        default: the value if the key is not given.
    """

    help: str
    read: Callable[[str], Any] = str
    default: Any = None


MOST_SEED = 2**32 - 1
MOST_EXAMPLES = 10_000_000


def whole(minimum: int, most: int | None = None) -> Callable[[str], int]:
    """A reader of whole numbers from ``minimum`` to ``most``."""

    def read(text: str) -> int:
        # No number may have 20 digits, and int() is slow for many thousands of them.
        plain = text.isascii() and text.isdigit() and len(text) < 20
        if not plain or int(text) < minimum or (most is not None and int(text) > most):
            raise ValueError(f"a whole number of at least {minimum}" + ("" if most is None else f", at most {most}"))
        return int(text)

    return read


def number(text: str) -> float:
    """Reads a finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError("a number of at least 0")
    return value


def switch(text: str) -> bool:
    """Reads true or false."""
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def whole_numbers(text: str) -> list[int]:
    """Reads whole numbers that are separated by commas."""
    try:
        return [whole(1)(part.strip()) for part in text.strip("[]").split(",")]
    except ValueError:
        raise ValueError("whole numbers separated by commas, for example 20,30") from None


def parse(arguments: Sequence[str], options: Mapping[str, Option]) -> dict[str, Any]:
    """Read the arguments; returns the value of every option.

    Args:
        arguments: as typed.
        options: by key; ``run`` has to be given.

    Raises:
        ConfigError: an unknown key, a wrong value, a key given twice, or a missing key; names it and the way out.
    """
    values: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals:
            raise ConfigError(
                f"'{argument}' is not key=value; put double quotes around a value with spaces: key=\"several words\""
            )
        if key not in options:
            raise ConfigError(f"unknown key '{key}'{did_you_mean(key, options)}")
        if key in values:
            raise ConfigError(f"{key} is given twice; give it once")
        if not text.strip():
            raise ConfigError(f"{key}= is empty; give a value, or leave the key out")
        try:
            values[key] = options[key].read(text)
        except ValueError as error:
            raise ConfigError(f"{key}={text} must be {error}") from error
    if "run" not in values:
        raise ConfigError(f"run= is missing: {options['run'].help}; --help shows every key")
    return {key: option.default for key, option in options.items()} | values


def help_text(description: str, options: Mapping[str, Option]) -> str:
    """The text of ``--help``."""
    width = max(map(len, options)) + 1
    keys = [f"  {key + '=':<{width}}  {option.help}" for key, option in options.items()]
    return "\n".join([description.strip(), "", "Keys:", *keys, ""])


def command(main: Callable[[dict[str, Any]], None], description: str, options: Mapping[str, Option]) -> None:
    """Run a command with the arguments of the process; an error ends the process with one line and exit code 1.

    Args:
        main: called with the value of every option.
        description: what the command does, for ``--help``.
        options: by key.
    """
    print_anything()
    quick_exit()
    arguments = sys.argv[1:]
    with one_line_errors(Path("conf")):
        try:
            if {"--help", "-h"} & set(arguments):
                sys.stdout.write(help_text(description, options))
            else:
                main(parse(arguments, options))
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of the output has ended (``| head``). Python flushes once more at its end: to the null device.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
