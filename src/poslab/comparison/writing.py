"""From folders to the written comparison; `write_comparison` reads top to bottom."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from poslab.comparison.axes import SEED, varying
from poslab.comparison.collect import Job, collect, in_order, without_repeats
from poslab.comparison.page import page
from poslab.comparison.past import past_training
from poslab.comparison.plots import LENGTH_PLOT, plots
from poslab.comparison.settings import Setting, by_setting
from poslab.comparison.statements import Statement, statements
from poslab.comparison.tables import csv_table, markdown
from poslab.system.files import write_atomically

CSV_FILE, MARKDOWN_FILE, PAGE_FILE, PLOTS_FOLDER = "comparison.csv", "comparison.md", "comparison.html", "comparison"


@dataclass(frozen=True)
class Comparison:
    """What was compared, what it says, and where it is written.

    Attributes:
        jobs: in the order of the tables.
        axes: names of the settings that vary, the seed last.
        settings: the jobs by setting.
        statements: what the data say.
        counts: number of jobs by status.
        files: everything that was written.
    """

    jobs: list[Job]
    axes: list[str]
    settings: list[Setting]
    statements: list[Statement]
    counts: dict[str, int]
    files: list[Path]


def write_comparison(folders: Sequence[Path], target: Path) -> Comparison:
    """Compare every job in ``folders`` and write the result into ``target``, file by file and each whole or not at all.

    Args:
        folders: sweep folders, whose direct subfolders are jobs, and run folders; nothing else is read.
        target: gets ``comparison.csv``, ``.md``, ``.html`` and a folder ``comparison`` with plots.

    Raises:
        ComparisonError: there is nothing to compare.
        OSError: ``target`` cannot be written.
    """
    found = collect(folders)
    axes = varying([job.settings for job in found])
    jobs = in_order(found, axes)
    settings = by_setting(jobs, axes)
    said, method = statements(jobs, axes)
    # Where lengths past training were asked for, they are the question.
    beyond, how = past_training(jobs, axes)
    said = [*beyond, *said]
    notes = [*filter(None, [how]), *remarks(jobs, axes)]
    drawn = plots(jobs, settings)
    beside = f"{PLOTS_FOLDER}/{LENGTH_PLOT}" if LENGTH_PLOT in drawn else None
    content = {
        CSV_FILE: csv_table(jobs, axes).encode(),
        MARKDOWN_FILE: markdown(jobs, settings, said, method, notes, beside).encode(),
        PAGE_FILE: page(jobs, axes, settings, said, method, notes, drawn.get(LENGTH_PLOT)).encode(),
    }
    content |= {f"{PLOTS_FOLDER}/{name}": png for name, png in drawn.items()}
    for name, data in content.items():
        write_atomically(target / name, data)
    counts = dict(sorted(Counter(job.status for job in jobs).items()))
    return Comparison(jobs, axes, settings, said, counts, [target / name for name in content])


def remarks(jobs: Sequence[Job], axes: Sequence[str]) -> list[str]:
    """What a reader has to know about these jobs before the numbers."""
    notes = []
    completed = [job for job in jobs if job.completed]
    repeats = len(completed) - len(without_repeats(completed))
    if repeats:
        notes.append(
            f"{repeats} of the completed jobs have exactly the settings of another one: they are listed, but each "
            "configuration counts once."
        )
    packages = {name for job in completed for name in job.versions}
    differing = {
        name: sorted({job.versions[name] for job in completed if name in job.versions}) for name in sorted(packages)
    }
    mixed = [f"{name} {', '.join(found)}" for name, found in differing.items() if len(found) > 1]
    if mixed:
        notes.append(f"The jobs were run with different versions: {'; '.join(mixed)}.")
    if completed and SEED not in axes:
        notes.append("There is one seed only: nothing here says how much of a difference is chance.")
    return notes
