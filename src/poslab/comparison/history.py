"""Read from ``metrics.csv`` a job's curves and the first step at which its scores reached 99 %."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from poslab.runs.learning import COLUMNS as LEARNING_COLUMNS
from poslab.runs.learning import Learning, learning_of
from poslab.system.reading import check_regular

GOOD = 0.99
"""A task counts as learned when a score reaches this value."""

CURVES = ("val/loss", "train/loss", "val/exact_match", "val/accuracy")
SCORES = ("val/exact_match", "val/accuracy")
MOST_POINTS = 200
MOST_BYTES = 2**28
MOST_ROWS = 2_000_000
MOST_STEP = 2**53
MOST_NUMBER = 1e30
"""Larger numbers are no results of a model in fp32, and sums of them overflow."""


class Reached(NamedTuple):
    """The first validation step with a score of at least `GOOD`, and the validation step before it.

    The score reached `GOOD` at some step after ``before`` and not after ``step``.
    """

    step: int
    before: int


@dataclass
class History:
    """Curves by name as (steps, values) with at most `MOST_POINTS` points, and when each score first reached `GOOD`."""

    curves: dict[str, tuple[list[int], list[float]]] = field(default_factory=dict)
    reached: dict[str, Reached] = field(default_factory=dict)


def read_history(path: Path, config: Mapping[str, Any]) -> tuple[History, Learning, Learning]:
    """Read a table of scalars by step; cells that are not numbers are skipped, and rows that go back to earlier steps.

    Args:
        path: the table.
        config: the job's configuration.

    Returns:
        the curves, how fast the job learned, and the same as read from the validation set.

    Raises:
        OSError: the file cannot be read, or is larger than `MOST_BYTES`.
        csv.Error: the file is not a CSV table with a column ``step``, or has more than `MOST_ROWS` rows.
    """
    check_regular(path, MOST_BYTES)
    curves: dict[str, tuple[list[int], list[float]]] = {}
    rows: list[dict[str, float]] = []
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        table = csv.reader(file)
        header = next(table, [])
        columns = {name: header.index(name) for name in {*LEARNING_COLUMNS, *CURVES} if name in header}
        if "step" not in columns:
            raise csv.Error("no column 'step'")
        at, last = columns["step"], -1
        for row in table:
            step = _number(row, at)
            if step is None or step <= last or step > MOST_STEP:
                continue
            if len(rows) == MOST_ROWS:
                raise csv.Error(f"it has more than {MOST_ROWS:,} rows")
            last = int(step)
            found = {name: _number(row, column) for name, column in columns.items()}
            rows.append({name: value for name, value in found.items() if value is not None})
            for name, value in rows[-1].items():
                if name in CURVES:
                    steps, values = curves.setdefault(name, ([], []))
                    steps.append(last)
                    values.append(value)
    reached = {name: first for name in SCORES if name in curves and (first := _first_good(*curves[name]))}
    history = History({name: thinned(*curve) for name, curve in curves.items()}, reached)
    return history, learning_of(rows, config), learning_of(rows, config, validated=True)


def _number(row: Sequence[str], column: int) -> float | None:
    """A cell's number; None if it is missing, not a number, or too large."""
    try:
        value = float(row[column])
    except (ValueError, IndexError):
        return None
    return value if abs(value) <= MOST_NUMBER else None


def _first_good(steps: Sequence[int], values: Sequence[float]) -> Reached | None:
    at = next((at for at, value in enumerate(values) if value >= GOOD), None)
    return None if at is None else Reached(steps[at], steps[at - 1] if at else steps[at])


def thinned(steps: list[int], values: list[float], most: int = MOST_POINTS) -> tuple[list[int], list[float]]:
    """Reduce a curve to at most ``most`` evenly spaced points, including the first and the last."""
    if len(steps) <= most:
        return steps, values
    keep = [round(at * (len(steps) - 1) / (most - 1)) for at in range(most)]
    return [steps[at] for at in keep], [values[at] for at in keep]
