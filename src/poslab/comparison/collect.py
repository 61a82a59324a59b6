"""Read jobs from their folders, including interrupted and damaged ones; unreadable files never raise an error."""

import csv
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from poslab.comparison.axes import SEED, Value, flat_settings, is_setting, order, plain, typed_settings
from poslab.comparison.history import MOST_NUMBER, History, read_history
from poslab.config.identity import NO_VALUE, SETTINGS
from poslab.errors import ComparisonError
from poslab.runs.learning import Learning
from poslab.runs.names import CONFIG_FILE, COPIES, INVALID_FILE, METRICS_FILE, RESULT_FILE, SUPERSEDED
from poslab.runs.result import by_length
from poslab.system.reading import read_json, read_yaml, readable

COMPLETED, DIVERGED, INVALID, BROKEN = "completed", "diverged", "invalid", "broken"
STATUSES = (COMPLETED, "interrupted", "pruned", DIVERGED, "failed", INVALID, BROKEN)

RESULT_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("batches_by_length", "learning", "metrics", "out_of_reach", "parameters"), dict),
    **dict.fromkeys(("start", "validation", "versions"), dict),
    "overrides": list,
    "error": str,
    "seed": int,
    "wall_seconds": (int, float),
}
LONGEST_NAME = 200
LONGEST_LINE = 500
"""Of a reason in a table, in characters."""


@dataclass(kw_only=True)
class Job:
    """One job, as read from its folder.

    Attributes:
        sweep: short name of the folder in which the job was found.
        name: name of the job's own folder; empty for an invalid combination, which has no folder.
        folder: the job's own folder; None for an invalid combination.
        status: the status in ``result.json``, or ``invalid`` (refused before it started) or ``broken`` (unreadable).
        error: one line; empty without an error.
        settings: flat name to value, as returned by `flat_settings`.
        overrides: the ``key=value`` arguments of the job that change what it computes.
        seed: the job's seed; None if it is not known.
        metrics: the finite numbers in ``result.json``.
        out_of_reach: start of a metric's name, such as ``length/40``, to the reason why the job has no such number.
        trained_to: longest training length in the unit of the task; None if the result does not record it.
        parameters: number of trainable parameters by part.
        wall_seconds: duration of the job; None if the result does not record it.
        versions: package name to version.
        history: curves and first steps from ``metrics.csv``.
        learning: how fast the job learned, from ``metrics.csv``.
        validated: the same as read from the validation set.
        start: scale of positions and tokens at the start, as in ``result.json``.
        validation: rows of the validation set, distinct ones, and the share seen in training, as in ``result.json``.
        comparison: how its sweep is to be compared, as in its configuration.
    """

    sweep: str
    name: str
    folder: Path | None
    status: str
    error: str = ""
    settings: dict[str, Value] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    seed: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    out_of_reach: dict[str, str] = field(default_factory=dict)
    trained_to: int | None = None
    parameters: dict[str, int] = field(default_factory=dict)
    wall_seconds: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    history: History = field(default_factory=History)
    learning: Learning = field(default_factory=Learning)
    validated: Learning = field(default_factory=Learning)
    start: dict[str, float] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    comparison: dict[str, Any] = field(default_factory=dict)

    @property
    def completed(self) -> bool:
        return self.status == COMPLETED

    @property
    def judged(self) -> bool:
        """Whether the job came to an end of its own: it completed, or it diverged."""
        return self.status in (COMPLETED, DIVERGED)

    @property
    def by_length(self) -> dict[int, float]:
        """Exact match at each evaluation length that is not out of reach."""
        return by_length(self.metrics).get("exact_match", {})

    @property
    def lengths_out_of_reach(self) -> dict[int, str]:
        """The evaluation lengths that are out of reach, with the reasons."""
        reasons = ((name.removeprefix("length/"), why) for name, why in self.out_of_reach.items())
        return {int(length): why for length, why in reasons if length.isdecimal()}

    def pictures(self, pattern: str) -> list[Path]:
        """Paths of the job's pictures whose file names match a glob pattern, sorted by name."""
        return [] if self.folder is None else sorted((self.folder / "figures").glob(pattern))


def collect(folders: Sequence[Path]) -> list[Job]:
    """Read every job in these folders, each once, in no particular order.

    Args:
        folders: sweep folders, whose direct subfolders are jobs, and run folders.

    Raises:
        ComparisonError: a folder does not exist, or none of them contains a job.
    """
    runs: dict[Path, Path] = {}
    sweeps: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise ComparisonError(f"{folder} is not a folder; name a sweep folder or a run folder")
        if _is_run(folder):
            runs[folder.resolve()] = folder.resolve().parent
            continue
        sweeps.append(folder.resolve())
        runs.update((path.resolve(), folder.resolve()) for path in sorted(folder.iterdir()) if _is_job(path))
    runs = {replica: parent for run, parent in runs.items() for replica in replicas_of(run)}
    names = _distinct_names({*runs.values(), *sweeps})
    jobs = [read_job(run, names[parent], _name_below(run, parent)) for run, parent in runs.items()]
    _fill_in_older_values(jobs)
    known = {key for job in jobs for key in job.settings}
    for sweep in dict.fromkeys(sweeps):
        jobs += _invalid_jobs(sweep, names[sweep], known)
    if not jobs:
        raise ComparisonError(f"no runs in {', '.join(map(str, folders))}; name a sweep folder or a run folder")
    return jobs


def _fill_in_older_values(jobs: Sequence[Job]) -> None:
    """Give a job that is older than a setting the value that it had then, if a newer job with the same part has one."""
    for key, setting in SETTINGS.items():
        part = key.partition(".")[0]
        if setting.before is NO_VALUE:
            continue
        newer = {job.settings.get(part) for job in jobs if key in job.settings}
        for job in jobs:
            if job.settings and key not in job.settings and job.settings.get(part) in newer:
                job.settings[key] = plain(setting.before)


def replicas_of(run: Path) -> list[Path]:
    """The run folders of a run's replicas; the run's own folder if it has none, as every run of a single model."""
    inside = run / COPIES
    replicas = [path for path in sorted(inside.iterdir()) if _is_run(path)] if inside.is_dir() else []
    return replicas or [run]


def _name_below(run: Path, parent: Path) -> str:
    """Name of a job: its folder's name; for a replica, both names, as in ``learned-seeds8-1a2b3c4d/seed3``."""
    # A link in a sweep's folder may lead to a run elsewhere.
    parts = run.relative_to(parent).parts if run.is_relative_to(parent) else (run.name,)
    return readable("/".join(part for part in parts if part != COPIES))


def _is_run(folder: Path) -> bool:
    # Path.exists raises if the folder may not be read.
    return any(os.path.lexists(folder / name) for name in (CONFIG_FILE, RESULT_FILE, METRICS_FILE))


def _is_job(path: Path) -> bool:
    """Whether a subfolder of a sweep is a job: it has files of a run, or it is empty as after an early kill."""
    if not path.is_dir() or path.name == SUPERSEDED or path.name.startswith("."):
        return False
    try:
        return _is_run(path) or not any(path.iterdir())
    except OSError:
        return True


def _distinct_names(folders: Iterable[Path]) -> dict[Path, str]:
    """Name each folder by its last path components, as few as make it distinct from the others."""
    names: dict[Path, str] = {}
    remaining, depth = set(folders), 1
    while remaining:
        by_name: dict[str, list[Path]] = {}
        for folder in remaining:
            by_name.setdefault(readable("/".join(folder.parts[-depth:])), []).append(folder)
        names |= {same[0]: name for name, same in by_name.items() if len(same) == 1}
        remaining -= names.keys()
        depth += 1
    return names


def read_job(folder: Path, sweep: str, name: str | None = None) -> Job:
    """Read one job. Unreadable files are named in its error; without a readable status it is ``broken``.

    Args:
        folder: the job's own folder.
        sweep: name of the sweep that it belongs to.
        name: name of the job; None: the name of its folder.
    """
    problems: list[str] = []
    config = _read(folder / CONFIG_FILE, read_yaml, problems)
    result = _read(folder / RESULT_FILE, read_json, problems)
    settings = flat_settings(config)
    status = result.get("status")
    # An unknown status may be that of a later version; it is shown unchanged.
    if not (isinstance(status, str) and re.fullmatch("[a-z][a-z _-]{0,30}", status)):
        if result:
            problems.append(_line(f"{RESULT_FILE} has no known status ({status!r})"))
        status = BROKEN
    elif odd := _odd(result):
        problems.append(f"{RESULT_FILE} is not as a run writes it: {odd}")
        status, result = BROKEN, {}
    history, learning, validated = History(), Learning(), Learning()
    try:
        history, learning, validated = read_history(folder / METRICS_FILE, config)
    except FileNotFoundError:
        if status == COMPLETED:
            problems.append(f"no {METRICS_FILE}")
    except (OSError, csv.Error, ArithmeticError, ValueError) as unreadable:
        problems.append(f"{METRICS_FILE} cannot be read ({_line(unreadable)})")
    error = _line(result.get("error") or "")
    seed = result.get("seed", settings.get(SEED))
    overrides = result.get("overrides")
    return Job(
        sweep=sweep,
        name=readable(folder.name) if name is None else name,
        folder=folder,
        # Results without settings cannot be compared.
        status=BROKEN if status == COMPLETED and not settings else status,
        error="; ".join(filter(None, [error, *problems])),
        settings=settings,
        overrides=[str(each) for each in overrides if is_setting(str(each))] if isinstance(overrides, list) else [],
        seed=seed if isinstance(seed, int) else None,
        metrics=_numbers(result.get("metrics")),
        out_of_reach={str(name): _line(why) for name, why in _mapping(result.get("out_of_reach")).items()},
        trained_to=max(
            (int(name) for name in _numbers(result.get("batches_by_length")) if name.isdecimal()), default=None
        ),
        parameters={name: int(count) for name, count in _numbers(result.get("parameters")).items()},
        wall_seconds=_numbers({"": result.get("wall_seconds")}).get(""),
        versions={str(name): _line(value) for name, value in _mapping(result.get("versions")).items()},
        history=history,
        learning=learning,
        validated=validated,
        start=_numbers(result.get("start")),
        validation=_numbers(result.get("validation")),
        comparison=_plan(_mapping(config.get("comparison"))),
    )


def _odd(result: dict[str, Any]) -> str:
    """The first value of a ``result.json`` that is of another type than a run writes, in words; empty if none is."""
    for name, kind in RESULT_TYPES.items():
        value = result.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
            return f"{name} is of type {type(value).__name__}"
        if any(len(each) > LONGEST_NAME for each in _mapping(value)):
            return f"{name} has a name of more than {LONGEST_NAME} characters"
    for name, value in _mapping(result.get("metrics")).items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            return _line(f"{name} is of type {type(value).__name__}")
    return ""


def _plan(stored: dict[Any, Any]) -> dict[str, Any]:
    """What a configuration says of the comparison, without values of other types."""
    margin, tune = stored.get("margin"), stored.get("tune")
    plan: dict[str, Any] = {"margin": margin} if isinstance(margin, (int, float)) else {}
    if isinstance(tune, list) and all(isinstance(axis, str) for axis in tune):
        plan["tune"] = tune
    return plan


def _read(path: Path, parse: Any, problems: list[str]) -> dict[str, Any]:
    """Parse a file that contains a mapping; on failure, append the reason to ``problems`` and return an empty one."""
    try:
        content = parse(path)
    except FileNotFoundError:
        problems.append(f"no {path.name}")
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} cannot be read ({_line(error)})")
    else:
        if isinstance(content, dict):
            return content
        problems.append(f"{path.name} has no content" if content is None else f"{path.name} is not a mapping")
    return {}


def _invalid_jobs(sweep: Path, name: str, known: Collection[str]) -> Iterator[Job]:
    """The invalid combinations of a sweep, from its ``invalid.json``.

    Overrides whose key is no setting of any other job, such as ``experiment=heads``, do not become settings.
    """
    path = sweep / INVALID_FILE
    if not os.path.lexists(path):
        return
    try:
        refused = read_json(path)
        listed = [([str(each) for each in entry["overrides"]], _line(entry["reason"])) for entry in refused]
    except (OSError, ValueError, TypeError, KeyError) as error:
        yield Job(sweep=name, name=INVALID_FILE, folder=None, status=BROKEN, error=f"cannot be read ({_line(error)})")
        return
    for overrides, reason in listed:
        settings = {key: value for key, value in typed_settings(overrides).items() if not known or key in known}
        seed = settings.get(SEED)
        yield Job(
            sweep=name,
            name="",
            folder=None,
            status=INVALID,
            error=reason,
            settings=settings,
            overrides=[override for override in overrides if is_setting(override)],
            seed=seed if isinstance(seed, int) else None,
        )


def _mapping(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _numbers(value: Any) -> dict[str, float]:
    """The entries of a mapping that are finite numbers."""
    return {
        str(name): number
        for name, number in _mapping(value).items()
        if isinstance(number, (int, float)) and not isinstance(number, bool) and abs(number) <= MOST_NUMBER
    }


def _line(error: Any) -> str:
    """A text or exception as one line, cut short; the class name of an exception without a text."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else error
    line = " ".join(str(said).split()) or (type(error).__name__ if isinstance(error, BaseException) else "")
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} ..."


def in_order(jobs: Iterable[Job], axes: Sequence[str]) -> list[Job]:
    """Sort jobs by their levels on the axes, then by name; the result does not depend on the order of the folders."""
    return sorted(
        jobs,
        key=lambda job: (
            [order(job.settings.get(axis)) for axis in axes],
            job.sweep,
            job.name,
            job.overrides,
        ),
    )


def without_repeats(jobs: Iterable[Job]) -> list[Job]:
    """The completed jobs, one per configuration: repeating a job with the same seed gives no new evidence."""
    return list({tuple(sorted(job.settings.items())): job for job in jobs if job.completed}.values())


def distinct(jobs: Iterable[Job]) -> list[Job]:
    """The jobs, one per configuration: a completed one before a diverged one, and that before any other."""
    found: dict[tuple[tuple[str, Value], ...], Job] = {}
    for job in sorted(jobs, key=lambda job: (job.completed, job.judged)):
        found[tuple(sorted(job.settings.items()))] = job
    return list(found.values())
