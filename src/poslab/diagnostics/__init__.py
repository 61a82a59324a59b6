"""Diagnostics: each file answers one question about a model, with numbers and pictures."""

from typing import Any

from poslab.build import build
from poslab.diagnostics.base import Diagnostic, Finding, OutOfReach, Picture, Scalars, Text
from poslab.diagnostics.callback import Diagnostics, inspecting
from poslab.errors import ConfigError
from poslab.pictures.gallery import Gallery
from poslab.tasks import Task

__all__ = [
    "Diagnostic",
    "Diagnostics",
    "Finding",
    "Gallery",
    "OutOfReach",
    "Picture",
    "Scalars",
    "Text",
    "build_diagnostics",
    "check_diagnostics",
    "inspecting",
]


def build_diagnostics(options: dict[str, dict[str, Any]], gallery: Gallery) -> list[Diagnostic]:
    """Build the diagnostics of a configuration, without those with ``every: 0``; ``gallery`` draws their pictures.

    Raises:
        ConfigError: a class that is not a diagnostic, or an unknown option.
    """
    built = [_build(name, one) for name, one in options.items()]
    for diagnostic in built:
        diagnostic.gallery = gallery
    return [diagnostic for diagnostic in built if diagnostic.every != 0]


def check_diagnostics(options: dict[str, dict[str, Any]], task: Task, max_context_length: int) -> None:
    """Refuse diagnostics that cannot be built, or that do not fit the task or the model's context.

    Raises:
        ConfigError: one line that names the values and the way out.
    """
    for name, one in options.items():
        try:
            _build(name, one).check(task, max_context_length)
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"diagnostics.{name}: {error}") from error


def _build(name: str, options: dict[str, Any]) -> Diagnostic:
    return build(f"diagnostics.{name}", options, Diagnostic)  # type: ignore[type-abstract]
