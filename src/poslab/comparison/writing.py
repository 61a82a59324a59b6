"""Read the jobs in some folders, compare them and write the comparison: `write_comparison`."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from poslab.comparison.axes import SEED, varying
from poslab.comparison.collect import Job, collect, in_order, without_repeats
from poslab.comparison.page import page
from poslab.comparison.past import past_training
from poslab.comparison.plots import LENGTH_PLOT, plots
from poslab.comparison.settings import Setting, by_setting
from poslab.comparison.statements import Plan, Statement, statements
from poslab.comparison.tables import csv_table, markdown
from poslab.comparison.verdicts import Verdict
from poslab.config.schema import ComparisonConfig
from poslab.errors import ComparisonError, ConfigError
from poslab.system.files import write_atomically

CSV_FILE, MARKDOWN_FILE, PAGE_FILE = "comparison.csv", "comparison.md", "comparison.html"
VERDICTS_FILE, PLOTS_FOLDER = "comparison.json", "comparison"


@dataclass(frozen=True)
class Comparison:
    """A comparison and the files that it was written to.

    Attributes:
        jobs: in the order of the tables.
        axes: names of the settings that vary, the seed last.
        settings: the jobs by setting.
        statements: sentences on the differences, with their evidence.
        verdicts: what may be said of each contrast.
        counts: number of jobs by status.
        files: paths of all written files.
    """

    jobs: list[Job]
    axes: list[str]
    settings: list[Setting]
    statements: list[Statement]
    verdicts: list[Verdict]
    counts: dict[str, int]
    files: list[Path]


def write_comparison(
    folders: Sequence[Path],
    target: Path,
    margin: float | None = None,
    tune: Sequence[str] | None = None,
    seeds_for: float | None = None,
) -> Comparison:
    """Compare every job in ``folders`` and write the result into ``target``; each file is written atomically.

    Args:
        folders: sweep folders, whose direct subfolders are jobs, and run folders.
        target: folder for ``comparison.csv``, ``comparison.md``, ``comparison.html``, ``comparison.json`` and a folder
            ``comparison`` with plots.
        margin: two levels within this factor are equivalent; None: as the jobs' configuration says.
        tune: axes along which each level is compared at its own best value; None: as the jobs' configuration says, of
            those that vary.
        seeds_for: a ratio for which the number of seeds needed is stated; None for no such statement.

    Raises:
        ComparisonError: there is nothing to compare, or one of ``tune`` does not vary.
        ConfigError: an invalid ``margin`` or ``tune``.
        OSError: ``target`` cannot be written.
    """
    found = collect(folders)
    axes = varying([job.settings for job in found])
    unknown = [axis for axis in tune or () if axis not in axes]
    if unknown:
        raise ComparisonError(
            f"comparison.tune: {', '.join(unknown)} does not vary in these jobs; what varies is {', '.join(axes)}"
        )
    stored = stored_plan(found)
    typed = ComparisonConfig(
        margin=stored.margin if margin is None else margin, tune=stored.tune if tune is None else [*tune]
    )
    plan = Plan(typed.margin, tuple(axis for axis in typed.tune if axis in axes), seeds_for)
    past = past_training(in_order(found, axes), axes)
    jobs = past.jobs
    settings = by_setting(jobs, axes)
    findings, verdicts, method = statements(jobs, axes, plan)
    findings = [*findings, *past.unreached]
    notes = [*filter(None, [past.method]), *remarks(jobs, axes)]
    drawn = plots(jobs, settings)
    length_plot = f"{PLOTS_FOLDER}/{LENGTH_PLOT}" if LENGTH_PLOT in drawn else None
    content = {
        CSV_FILE: csv_table(jobs, axes).encode(),
        MARKDOWN_FILE: markdown(jobs, settings, findings, method, notes, length_plot).encode(),
        PAGE_FILE: page(jobs, axes, settings, findings, method, notes, drawn.get(LENGTH_PLOT)).encode(),
        VERDICTS_FILE: _verdicts(verdicts, plan),
    }
    content |= {f"{PLOTS_FOLDER}/{name}": png for name, png in drawn.items()}
    for name, data in content.items():
        write_atomically(target / name, data)
    counts = dict(sorted(Counter(job.status for job in jobs).items()))
    return Comparison(jobs, axes, settings, findings, verdicts, counts, [target / name for name in content])


def stored_plan(jobs: Sequence[Job]) -> ComparisonConfig:
    """How the jobs' configuration says they are to be compared: that of the first job which says something."""
    stored = next((job.comparison for job in jobs if job.comparison), {})
    try:
        return ComparisonConfig(**{key: value for key, value in stored.items() if key in ("margin", "tune")})
    except (ConfigError, TypeError):
        # Somebody has changed the file; the runs can be compared all the same.
        return ComparisonConfig()


def _verdicts(verdicts: Sequence[Verdict], plan: Plan) -> bytes:
    content = {"margin": plan.margin, "tune": plan.tune, "verdicts": [asdict(verdict) for verdict in verdicts]}
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def remarks(jobs: Sequence[Job], axes: Sequence[str]) -> list[str]:
    """Notes on the jobs: repeated configurations, different versions, a single seed."""
    notes = []
    completed = [job for job in jobs if job.completed]
    repeats = len(completed) - len(without_repeats(completed))
    if repeats:
        notes.append(
            f"{repeats} of the completed jobs have exactly the settings of another one: they are listed, but each "
            "configuration counts only once."
        )
    packages = {name for job in completed for name in job.versions}
    differing = {
        name: sorted({job.versions[name] for job in completed if name in job.versions}) for name in sorted(packages)
    }
    mixed = [f"{name} {', '.join(found)}" for name, found in differing.items() if len(found) > 1]
    if mixed:
        notes.append(f"The jobs were run with different versions: {'; '.join(mixed)}.")
    plans = {json.dumps(job.comparison, sort_keys=True) for job in jobs if job.comparison}
    if len(plans) > 1:
        notes.append("The sweeps differ in their `comparison` settings; those of the first one are used.")
    if completed and SEED not in axes:
        notes.append("There is only one seed, so no difference can be distinguished from chance.")
    return notes
