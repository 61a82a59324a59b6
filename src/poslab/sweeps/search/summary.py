"""The results of a search: ``search.json``, ``search.md`` and the table at its end."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from poslab.cli.terminal import drawn
from poslab.sweeps.plan import as_json
from poslab.sweeps.search.objectives import Objective
from poslab.sweeps.search.options import Options
from poslab.system.files import write_atomically

JSON_FILE, MARKDOWN_FILE = "search.json", "search.md"
COMPLETED = "completed"


@dataclass(kw_only=True)
class Outcome:
    """One trial.

    Attributes:
        trial: its number.
        state: ``completed``, ``pruned``, ``failed`` or ``running``.
        settings: the drawn values.
        values: of the objectives, by metric; empty unless completed.
        folder: name of its job's folder; empty if it has none.
        reason: why it was not completed, in one line; else empty.
    """

    trial: int
    state: str
    settings: dict[str, Any]
    values: dict[str, float]
    folder: str
    reason: str


@dataclass(kw_only=True)
class Summary:
    """The content of ``search.json``."""

    options: Options
    study: str
    trials: list[Outcome]
    best: list[Outcome]

    @property
    def goals(self) -> list[Objective]:
        return self.options.goals

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(outcome.state for outcome in self.trials).most_common())

    @property
    def counts_text(self) -> str:
        return ", ".join(f"{count} {state}" for state, count in self.counts.items())

    @property
    def title(self) -> str:
        if len(self.goals) > 1:
            return f"{len(self.best)} best compromises of " + " and ".join(map(str, self.goals))
        return f"best trial by {self.goals[0]}"

    def write(self, folder: Path) -> None:
        """Write both files, each whole or not at all."""
        content = {
            "objectives": [goal._asdict() for goal in self.goals],
            "sampler": self.options.sampler,
            "pruner": self.options.pruner,
            "seed": self.options.seed,
            "n_trials": self.options.n_trials,
            "storage": self.options.storage,
            "study": self.study,
            "counts": self.counts,
            "best": [asdict(outcome) for outcome in self.best],
            "trials": [asdict(outcome) for outcome in self.trials],
        }
        write_atomically(folder / JSON_FILE, as_json(content))
        write_atomically(folder / MARKDOWN_FILE, self.markdown().encode())

    def markdown(self) -> str:
        """The best trials, then all trials."""
        counts = self.counts_text or "no"
        lines = [f"# Search: {self.title}", "", f"{counts} trials; sampler {self.options.sampler}.", ""]
        lines += [*markdown_table(*self.rows(self.best)), "", "## All trials", ""]
        lines += markdown_table(*self.rows(self.trials, with_state=True))
        return "\n".join(lines) + "\n"

    def table(self) -> str:
        """The best trials for a terminal: a single one from top to bottom, several one below the other."""
        header, rows = self.rows(self.best)
        one = len(rows) == 1
        table = Table(show_header=not one)
        if one:
            header, rows = ["what", "value"], [list(pair) for pair in zip(header, rows[0], strict=True)]
        else:
            # The folder's name is too long for a terminal; search.md has it.
            header, rows = header[:-1], [row[:-1] for row in rows]
        for name in header:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*row)
        # A title of the table itself would break at the width of a narrow table.
        return f"{self.title}\n{drawn(table, widest=120)}"

    def rows(self, outcomes: Sequence[Outcome], with_state: bool = False) -> tuple[list[str], list[list[str]]]:
        """The header and the cells of a table."""
        metrics = [goal.metric for goal in self.goals]
        settings = list(dict.fromkeys(key for outcome in self.trials for key in outcome.settings))
        header = ["trial", *(["state"] if with_state else []), *metrics, *settings, "folder"]
        rows = [
            [
                str(outcome.trial),
                *([f"{outcome.state}: {outcome.reason}" if outcome.reason else outcome.state] if with_state else []),
                *(shown(outcome.values.get(metric, "")) for metric in metrics),
                *(shown(outcome.settings.get(key, "")) for key in settings),
                outcome.folder,
            ]
            for outcome in outcomes
        ]
        return header, rows


def shown(value: Any) -> str:
    """A cell of a table, with numbers of four digits."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"
    return str(value)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [list(header), ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells]
