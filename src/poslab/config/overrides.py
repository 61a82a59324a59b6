"""Overrides as Hydra reads them: their keys, which of them make a job different, how to write a value."""

import re
from collections.abc import Sequence

from poslab.config.identity import Role, role_of

CONDITION = "trainer.stop_when"


def key_of(override: str) -> str:
    """The key of ``key=value``, ``+key=value`` or ``~key``."""
    return override.lstrip("+~").partition("=")[0]


def job_overrides(overrides: Sequence[str]) -> list[str]:
    """The overrides that make a job different; not those that resume it or that tell Hydra how to run it."""
    return [one for one in overrides if role_of(key_of(one)) not in (Role.RESTART, Role.HYDRA)]


def quoted_condition(word: str) -> str:
    """A typed word as it is, or ``trainer.stop_when=`` with its conditions in the quotes that Hydra's grammar wants."""
    key, _, value = word.partition("=")
    if key.lstrip("+") != CONDITION or not re.search("[<>]", value) or re.search("['\"]", value):
        return word
    return f"{key}={','.join(override(CONDITION, one).partition('=')[2] for one in value.split(','))}"


def override(key: str, value: str) -> str:
    """``key=value`` that Hydra's grammar reads back as this value; in quotes where the value needs them."""
    if re.fullmatch("[A-Za-z0-9._/-]*", value):
        return f"{key}={value}"
    # A backslash is itself, except before a quote: there, and before the closing one, it has to be doubled.
    doubled = re.sub(r"(\\+)(?='|$)", r"\1\1", value)
    escaped = doubled.replace("'", "\\'")
    return f"{key}='{escaped}'"
