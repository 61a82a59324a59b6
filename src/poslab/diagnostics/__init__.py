"""Diagnostics: one file each, a pure function that computes and draws, and a thin callback that says when."""

from typing import Any

from poslab.assembly import build
from poslab.diagnostics.base import Diagnostic, Finding, OutOfReach, Picture, Scalars, Text
from poslab.diagnostics.gallery import Gallery

__all__ = ["Diagnostic", "Finding", "Gallery", "OutOfReach", "Picture", "Scalars", "Text", "build_diagnostics"]


def build_diagnostics(options: dict[str, dict[str, Any]], gallery: Gallery) -> list[Diagnostic]:
    """The diagnostics that a configuration asks for, without those with ``every: 0``; ``gallery`` draws for them.

    Raises:
        ConfigError: a class that is no diagnostic, or an unknown option.
    """
    built = [build(f"diagnostics.{name}", one, Diagnostic) for name, one in options.items()]  # type: ignore[type-abstract]
    for diagnostic in built:
        diagnostic.gallery = gallery
    return [diagnostic for diagnostic in built if diagnostic.every != 0]
