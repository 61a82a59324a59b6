"""Overrides of Hydra: which of them make a job different, and how a value is quoted in one."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path


def job_overrides(overrides: Sequence[str]) -> list[str]:
    """Those that make a job different: not how it is started again, nor what Hydra does with it."""
    return [one for one in overrides if not one.lstrip("+~").startswith(("resume=", "sweep.", "hydra.", "hydra/"))]


def quoted(value: str) -> str:
    """A value that Hydra's override grammar reads back as it is."""
    # A backslash is itself, except before a quote: there, and before the closing one, it has to be doubled.
    doubled = re.sub(r"(\\+)(?='|$)", r"\1\1", value)
    escaped = doubled.replace("'", "\\'")
    return f"'{escaped}'"


def pasted(key: str, value: Path) -> str:
    """``key=value`` as it can be pasted behind a command, whatever is in the path.

    In double quotes where it needs any and they do: single ones are none in Windows' cmd.
    """
    text = f"{key}={value}"
    if re.fullmatch(r"[A-Za-z0-9._/=-]*", text) and text.count("=") == 1:
        return text
    text = f"{key}={quoted(str(value))}"
    return shlex.quote(text) if re.search(r'["$`!\\]', text) else f'"{text}"'
