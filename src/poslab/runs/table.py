"""Reads and writes ``metrics.csv``: all logged numbers, one row per step."""

import csv
import io
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from poslab.runs.metrics import MONITORED
from poslab.runs.names import METRICS_FILE
from poslab.system.files import MISSING, read_file, write_atomically

log = logging.getLogger(__name__)

NOT_A_TABLE = (ValueError, TypeError, KeyError, csv.Error)
"""What reading a text raises that is not a whole table; a file that cannot be read now is a ValueError too."""


class MetricsTable:
    """All logged numbers, one row per step, in memory; `save` writes them to ``metrics.csv``.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS_FILE
        self.rows: dict[int, dict[str, float]] = {}

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Add numbers of one step."""
        self.rows.setdefault(step, {}).update(metrics)

    def text(self) -> str:
        """The content of the file, with the columns sorted by name."""
        names = sorted({name for row in self.rows.values() for name in row})
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, ["step", *names], lineterminator="\n")
        table.writeheader()
        table.writerows(self.dated())
        return text.getvalue()

    def save(self, durable: bool = False) -> str:
        """Write the file and return its content; a folder that has been removed is not made again."""
        text = self.text()
        with suppress(FileNotFoundError):
            write_atomically(self.path, text.encode(), durable, make_folder=False)
        return text

    def restore(self, step: int, text: str) -> None:
        """Take over the rows up to ``step`` of a table.

        Raises:
            ValueError, TypeError, KeyError, csv.Error: the text is not one.
        """
        self.rows = rows_up_to(step, text)

    def repair(self, step: int) -> None:
        """Write the file again if it lacks some of the rows up to ``step``, and say so."""
        try:
            there = rows_up_to(step, read_file(self.path).decode())
        except (*MISSING, *NOT_A_TABLE):
            there = {}
        if any(not texts(row) <= texts(there.get(at, {})) for at, row in self.rows.items()):
            log.warning("%s lacks numbers up to step %d; they are restored from the checkpoint", self.path, step)
            self.save()

    def last(self) -> dict[str, float]:
        """The last value of every scalar."""
        return {name: value for step in sorted(self.rows) for name, value in self.rows[step].items()}

    def best_step(self) -> int | None:
        """The step of the lowest validation loss after step 0, the first if several are equal: that of ``best.ckpt``.

        None if there is no validation after step 0.
        """
        losses = {step: row[MONITORED] for step, row in sorted(self.rows.items()) if step and MONITORED in row}
        return min(losses, key=losses.__getitem__, default=None)

    def dated(self) -> list[dict[str, float]]:
        """Every row with its step, in the order of the steps."""
        return [{"step": step, **self.rows[step]} for step in sorted(self.rows)]


def rows_up_to(step: int, text: str) -> dict[int, dict[str, float]]:
    """Read the rows of a table up to a step.

    Raises:
        ValueError, TypeError, KeyError, csv.Error: the text is no such table.
    """
    if not text.endswith("\n"):
        raise ValueError("the last line is cut")
    rows = {}
    for row in csv.DictReader(io.StringIO(text, newline="")):
        at = int(row.pop("step"))
        values = {name: float(value) for name, value in row.items() if value}
        if at <= step:
            rows[at] = values
    return rows


def texts(row: Mapping[str, float]) -> set[tuple[str, str]]:
    """The numbers of a row as texts, because NaN is not equal to itself."""
    return {(name, repr(value)) for name, value in row.items()}
