"""What a setting may be, and the one line that refuses one that may not. Nothing here imports torch."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any

from poslab.errors import ConfigError

MOST_WHOLE = 2**63 - 1
MOST_NUMBER = 1e20
"""Of a setting that is no whole number: far above it, products of two of them leave the range of fp32."""


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` that ``name`` was probably meant to be; None when none is near."""
    return next(iter(get_close_matches(name, list(names), n=1, cutoff=0.6)), None)


def did_you_mean(name: str, names: Collection[str]) -> str:
    """``; did you mean 'x'?`` for the nearest of ``names``, or a list of them all when none is near."""
    near = nearest(name, names)
    return f"; did you mean '{near}'?" if near else f"; there are: {', '.join(sorted(names)) or 'none'}"


def one_of(key: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{key}={value} is unknown; choose one of {', '.join(choices)}")


def at_least(minimum: float, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not value >= minimum:
            raise ConfigError(f"{name.replace('__', '.')}={value} must be at least {minimum}")


def at_most(maximum: int, **values: int) -> None:
    for name, value in values.items():
        if value > maximum:
            raise ConfigError(f"{name.replace('__', '.')}={value} must be at most {maximum}")


def check_numbers(node: Any, key: str = "") -> None:
    """Refuse numbers that a computer does not count with, wherever they stand.

    Raises:
        ConfigError: names the key, the value and the bound.
    """
    if isinstance(node, dict):
        for name, value in node.items():
            check_numbers(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for value in node:
            check_numbers(value, key)
    elif isinstance(node, float) and not abs(node) <= MOST_NUMBER:
        raise ConfigError(f"{key}={node} must be a finite number, at most {MOST_NUMBER:g}")
    elif isinstance(node, int) and abs(node) > MOST_WHOLE:
        # Not the number itself: Python writes no more than 4300 digits.
        raise ConfigError(f"{key} is a number of about {node.bit_length() * 0.30103:.0f} digits; it must be below 2^63")
