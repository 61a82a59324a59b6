"""Checks of a single setting, each with its error in one line. Nothing here imports torch."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any

from poslab.errors import ConfigError

MOST_WHOLE = 2**63 - 1
MOST_NUMBER = 1e20
"""The largest value of a setting that is a float: the product of two much larger ones overflows fp32."""


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` that is most similar to ``name``; None if none is similar."""
    return next(iter(get_close_matches(name, list(names), n=1, cutoff=0.6)), None)


def did_you_mean(name: str, names: Collection[str]) -> str:
    """``; did you mean 'x'?`` for the most similar of ``names``, or a list of all if none is similar."""
    near = nearest(name, names)
    return f"; did you mean '{near}'?" if near else f"; there are: {', '.join(sorted(names)) or 'none'}"


def one_of(key: str, value: str, choices: Collection[str]) -> None:
    """Refuse a value that is not one of the choices."""
    if value not in choices:
        raise ConfigError(f"{key}={value} is unknown; choose one of {', '.join(choices)}")


def at_least(minimum: float, part: object, prefix: str, *names: str) -> None:
    """Refuse settings of a part that are below a minimum; None passes.

    Args:
        minimum: of all of them.
        part: the object that has the settings.
        prefix: ``trainer.`` for the settings of the trainer.
        names: of the settings in the part.
    """
    for name in names:
        value = getattr(part, name)
        if value is not None and not value >= minimum:
            raise ConfigError(f"{prefix}{name}={value} must be at least {minimum}")


def at_most(maximum: int, part: object, prefix: str, *names: str) -> None:
    """Refuse settings of a part that are above a maximum; the arguments are those of `at_least`."""
    for name in names:
        if int(getattr(part, name)) > maximum:
            raise ConfigError(f"{prefix}{name}={getattr(part, name)} must be at most {maximum}")


def check_numbers(node: Any, key: str = "") -> None:
    """Refuse NaN, infinity and numbers that are too large, anywhere in nested settings.

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
        # The number itself may be longer than the 4300 digits that Python writes.
        raise ConfigError(f"{key} is a number of about {node.bit_length() * 0.30103:.0f} digits; it must be below 2^63")
