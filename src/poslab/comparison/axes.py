"""Settings as flat names and values, and which of them vary: the axes of a comparison."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from poslab.config.identity import NOT_IN_IDENTITY, Role, choice_of, flat, role_of, without
from poslab.config.overrides import key_of

Value = int | float | str

SEED = "seed"
# Beside what has no effect on the result: a replica is compared with others as a run of its own.
_NOT_AXES = (*NOT_IN_IDENTITY, Role.REPLICAS)
_ORDER = ("task", "pos", "model", "optimizer", "data", "trainer")


def flat_settings(config: Mapping[str, Any]) -> dict[str, Value]:
    """A job's ``config.yaml`` as ``model.d_model`` to 32, without what only says where to write and what to show.

    A class named by ``_target_`` is shown as its module, as on the command line: ``pos`` is ``sinusoidal``.
    ``init_from`` is shown by its last name and the checksum of its weights.
    """
    settings: dict[str, Value] = {}
    for key, value in without(flat(config), *_NOT_AXES).items():
        part, _, name = key.rpartition(".")
        if name == "_target_":
            settings[part] = choice_of(value)
        else:
            settings[key] = plain(value)
    checksum = settings.pop("init_from_sha256", plain(None))
    if checksum != plain(None):
        settings["init_from"] = f"{Path(str(config.get('init_from'))).name} {str(checksum)[:8]}"
    return settings


def plain(value: Any) -> Value:
    """A setting's value as a level: numbers and texts as they are, anything else as JSON."""
    # Truth values as text: in Python True equals 1, and an axis of 1 and true would lose a level.
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return json.dumps(value, default=str)


def typed_settings(overrides: Iterable[str]) -> dict[str, Value]:
    """The settings that ``key=value`` texts name, for a job that never had a configuration."""
    pairs = (override.lstrip("+").partition("=") for override in overrides)
    return {key: _number(value) for key, equals, value in pairs if equals}


def _number(text: str) -> Value:
    for kind in (int, float):
        try:
            number = kind(text) if len(text) < 30 else math.nan
        except ValueError:
            continue
        return number if math.isfinite(number) else text
    return text


def is_setting(override: str) -> bool:
    """Whether an override says what a job computes, rather than where it writes."""
    return role_of(key_of(override)) not in _NOT_AXES


def varying(jobs: Sequence[Mapping[str, Value]]) -> list[str]:
    """Names of the settings that take more than one value, in a fixed order, the seed last.

    A setting of a named part counts only where it varies within that part: ``pos.base`` belongs to ``pos=sinusoidal``
    and is no axis of its own because ``pos=learned`` has none.
    """
    found: dict[tuple[str, Value | None], set[Value]] = defaultdict(set)
    for settings in jobs:
        for key, value in settings.items():
            part = key.partition(".")[0]
            found[key, settings.get(part) if part != key else None].add(value)
    return sorted({key for (key, _), values in found.items() if len(values) > 1}, key=_axis_order)


def _axis_order(axis: str) -> tuple[bool, int, str]:
    part = axis.partition(".")[0]
    return axis == SEED, _ORDER.index(part) if part in _ORDER else len(_ORDER), axis


def order(value: Value | None) -> tuple[int, float, str]:
    """A sort key: numbers by size, then texts, then no value."""
    if value is None:
        return 2, 0.0, ""
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")


def is_numeric(levels: Iterable[Value]) -> bool:
    """Whether neighbouring levels are the natural ones to compare."""
    return all(not isinstance(level, str) for level in levels)


def short_names(axes: Sequence[str]) -> dict[str, str]:
    """Each axis by its last word, or by its whole name where two share a last word."""
    leaves = [axis.rpartition(".")[2] for axis in axes]
    return {axis: leaf if leaves.count(leaf) == 1 else axis for axis, leaf in zip(axes, leaves, strict=True)}


def level_name(axis: str, level: Value, names: Mapping[str, str]) -> str:
    """``sinusoidal`` for a named part, ``n_heads 8`` for anything else."""
    return show(level) if "." not in axis and isinstance(level, str) else f"{names.get(axis, axis)} {show(level)}"


def show(value: Value | None) -> str:
    """A level as text; a dash where a job has none."""
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, float) else str(value)
