"""Which packages a configuration may name classes of: this one, and those that the user has named."""

import os

PACKAGE = "poslab"
VARIABLE = "POSLAB_PACKAGES"
"""The environment variable in which the user names further packages, separated by commas."""


def named_packages() -> list[str]:
    """The packages that the user has named. Only the environment counts, because a file may be from someone else."""
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


def lies_in(name: str, *packages: str) -> bool:
    """Whether the dotted name of a module or class lies in one of these packages."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)
