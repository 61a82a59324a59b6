"""The content of ``result.json``."""

import json
import logging
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from poslab.errors import ConfigError
from poslab.runs.metrics import MONITORED
from poslab.runs.names import RESULT_FILE
from poslab.system.files import DAMAGED, MISSING, read_file
from poslab.system.reading import parsed_json, read_json

log = logging.getLogger(__name__)

Status = Literal["completed", "failed", "diverged", "interrupted", "pruned"]
KEPT_BYTES = 8192
"""Size of ``result.json`` during a run: enough for its status, settings and parameters."""


@dataclass(kw_only=True)
class Result:
    """The content of ``result.json``.

    Attributes:
        status: how the run ended.
        error: the reason of any other status than ``completed``, in one line, or None.
        metrics: name to number: the last value of every logged scalar; ``start/...``, the first training loss and
            the validation of the untrained model; ``best/...``, the validation of the weights in ``best.ckpt``. Of a
            run of several seeds: the means over the replicas that completed, and their number as ``copies/completed``.
        validation: of a completed run: ``rows`` of the validation set, ``distinct_rows``, the number of different ones,
            and ``seen_in_training``, the share of ``rows`` that training batches contained too. None otherwise, and
            for a run of several seeds, whose replicas have their own.
        learning: how fast the run learned, `poslab.runs.learning.Learning.stored`; None before a run has a loss, and
            for a run of several seeds, whose replicas have their own.
        batches_by_length: batches that the run trained on, by the length of their rows in the task's own unit.
        out_of_reach: beginning of a metric's name (``length/40``) to the reason why the run has no such number.
        parameters: trainable parameters by part, and their total.
        start: before training: ``position_rms`` of the vectors that are added for positions, None if none are;
            ``token_rms`` of the token vectors; and ``position_over_token``. For a run of several seeds: the means.
        overrides: the overrides as typed.
        seed: of the run.
        wall_seconds: from the start of the job to its end; for a resumed run, the sum over its parts.
        device: from `poslab.system.devices.device_name`; None if the run ended before it had a device.
        versions: of Python and the packages that decide numbers.
    """

    status: Status
    error: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    validation: Mapping[str, float] | None = None
    parameters: Mapping[str, int] = field(default_factory=dict)
    start: Mapping[str, float | None] = field(default_factory=dict)
    learning: Mapping[str, Any] | None = None
    batches_by_length: Mapping[str, int] = field(default_factory=dict)
    out_of_reach: Mapping[str, str] = field(default_factory=dict)
    overrides: Sequence[str] = ()
    seed: int
    wall_seconds: float = 0.0
    device: str | None = None
    versions: Mapping[str, str] = field(default_factory=lambda: versions())


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide numbers."""
    packages = ("poslab", "torch", "lightning", "hydra-core", "tensorboard", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def by_length(metrics: Mapping[str, float]) -> dict[str, dict[int, float]]:
    """The scores ``length/<n>/<score>`` as one curve per score, from the shortest length to the longest."""
    curves: dict[str, dict[int, float]] = {}
    for name, value in metrics.items():
        part, length, score = [*name.split("/", 2), "", ""][:3]
        if part == "length" and length.isdecimal() and len(length) < 10 and score:
            curves.setdefault(score, {})[int(length)] = value
    return {score: dict(sorted(curve.items())) for score, curve in sorted(curves.items())}


def _encoded(result: Result) -> bytes:
    return json.dumps(asdict(result), indent=2, allow_nan=False).encode() + b"\n"


def read_result(folder: Path) -> tuple[dict[str, Any], list[Path]]:
    """Read a run folder's ``result.json`` for a resume; empty if there is none, or if it is damaged.

    Returns:
        the content, and the damaged file, which is also reported in a warning.

    Raises:
        ConfigError: the file cannot be read now.
    """
    path = folder / RESULT_FILE
    try:
        result = parsed_json(read_file(path))
        check_types(result)
    except MISSING:
        return {}, []
    except ConfigError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        log.warning("%s is damaged (%s); it is kept as %s%s and written again", path, error, path.name, DAMAGED)
        return {}, [path]
    return result, []


def check_types(result: Any) -> None:
    """Refuse what a resume reads in ``result.json`` if a run would not have written it.

    Raises:
        TypeError, OverflowError: names the part.
    """
    if not (isinstance(result, dict) and isinstance(result.get("status"), str)):
        raise TypeError("no status")
    if not is_finite(result.get("wall_seconds", 0.0)):
        raise TypeError("wall_seconds is not a number")
    metrics = result.get("metrics")
    if result["status"] == "completed" and not (isinstance(metrics, dict) and is_finite(metrics.get(MONITORED))):
        raise TypeError(f"it is completed without {MONITORED}")


def is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def stored_result(folder: Path) -> dict[str, Any]:
    """The content of a run folder's ``result.json``; empty if it cannot be read."""
    try:
        result = read_json(folder / RESULT_FILE)
    except (OSError, ValueError):
        return {}
    return result if isinstance(result, dict) else {}


def stored_status(folder: Path) -> str | None:
    """The status in a run folder's ``result.json``; None if it cannot be read."""
    return stored_result(folder).get("status")
