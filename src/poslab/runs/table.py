"""Reads and writes ``metrics.csv``: all logged numbers, one row per step."""

import csv
import io
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from poslab.runs.metrics import MONITORED
from poslab.runs.names import METRICS_FILE
from poslab.system.files import write_atomically


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

    def save(self) -> None:
        """Write the table, with the columns sorted by name; a folder that has been removed is not made again."""
        names = sorted({name for row in self.rows.values() for name in row})
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, ["step", *names], lineterminator="\n")
        table.writeheader()
        table.writerows(self.dated())
        with suppress(FileNotFoundError):
            write_atomically(self.path, text.getvalue().encode(), make_folder=False)

    def restore(self, step: int, folder: Path | None = None) -> None:
        """Read the rows up to ``step`` from this folder's file, or from that of another run's ``folder``."""
        path = self.path if folder is None else folder / METRICS_FILE
        if not path.exists():
            return
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                at = int(row.pop("step"))
                if at <= step:
                    self.rows[at] = {name: float(value) for name, value in row.items() if value}

    def first(self) -> dict[str, float]:
        """The first value of every scalar."""
        return {name: value for step in sorted(self.rows, reverse=True) for name, value in self.rows[step].items()}

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
