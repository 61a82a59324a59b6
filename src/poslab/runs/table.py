"""``metrics.csv``: every logged number by step."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger

from poslab.runs.names import METRICS_FILE
from poslab.system.files import write_atomically
from poslab.system.ranks import is_second_rank


class MetricsTable(Logger):
    """Every logged scalar, one row a step, in ``metrics.csv``; also remembered, for ``result.json``.

    Lightning's own CSVLogger is no help here: it writes a line per call and one folder per version.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / METRICS_FILE
        self.rows: dict[int, dict[str, float]] = {}

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the configuration is a file of its own."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.rows.setdefault(int(step or 0), {}).update(metrics)

    def save(self) -> None:
        """Write the table; columns in order of their name. Only the first rank does: the others have seen no number."""
        # A folder that has been removed is not made again.
        if is_second_rank() or not self.path.parent.is_dir():
            return
        names = sorted({name for row in self.rows.values() for name in row})
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, ["step", *names], lineterminator="\n")
        table.writeheader()
        table.writerows({"step": step, **self.rows[step]} for step in sorted(self.rows))
        write_atomically(self.path, text.getvalue().encode())

    def finalize(self, status: str) -> None:
        self.save()

    def go_on(self, step: int, folder: Path | None = None) -> None:
        """Take over the rows that an earlier start of this run wrote, up to ``step``; here, or in another folder."""
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

    def column(self, name: str) -> list[float]:
        """Every value of one scalar, by step."""
        return [self.rows[step][name] for step in sorted(self.rows) if name in self.rows[step]]
