"""Reading finished, unfinished and broken jobs from their folders; nothing a folder holds can stop it."""

import csv
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from poslab.comparison.axes import SEED, Value, flat_settings, is_setting, order, typed_settings
from poslab.comparison.history import History, read_history
from poslab.errors import ComparisonError
from poslab.runs.names import CONFIG_FILE, COPIES, INVALID_FILE, METRICS_FILE, RESULT_FILE, SUPERSEDED
from poslab.runs.result import by_length

COMPLETED, INVALID, BROKEN = "completed", "invalid", "broken"
STATUSES = (COMPLETED, "interrupted", "diverged", "failed", INVALID, BROKEN)

# The parser written in C takes a tenth of the time, where PyYAML was built with it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(kw_only=True)
class Job:
    """One job as its folder tells it.

    Attributes:
        sweep: short name of the folder it was found in.
        name: of its own folder; empty for a combination that was refused before it got one.
        folder: its own; None when it never had one.
        status: as in ``result.json``; also ``invalid`` (refused before it started) and ``broken`` (cannot be read).
        error: in one line; empty when there is none.
        settings: flat name to value, see `flat_settings`.
        metrics: the finite numbers of ``result.json``.
        out_of_reach: beginning of a metric's name to the reason why the job has no such number.
        trained_to: the longest rows that it was trained on, in the task's own unit; None where that is not recorded.
        history: what ``metrics.csv`` adds.
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

    @property
    def completed(self) -> bool:
        return self.status == COMPLETED

    @property
    def by_length(self) -> dict[int, float]:
        """Exact match at each length that the job was evaluated at and reaches."""
        return by_length(self.metrics).get("exact_match", {})

    @property
    def lengths_out_of_reach(self) -> dict[int, str]:
        """The lengths that it was to be evaluated at and does not reach, with the reasons."""
        reasons = ((name.removeprefix("length/"), why) for name, why in self.out_of_reach.items())
        return {int(length): why for length, why in reasons if length.isdecimal()}

    def pictures(self, pattern: str) -> list[Path]:
        """The job's pictures whose file name fits, by name."""
        return [] if self.folder is None else sorted((self.folder / "figures").glob(pattern))


def collect(folders: Sequence[Path]) -> list[Job]:
    """Every job in these folders, each once, in no particular order.

    Args:
        folders: sweep folders, whose direct subfolders are jobs, and run folders.

    Raises:
        ComparisonError: a folder does not exist, or there is no job in any of them.
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
    runs = {copy: parent for run, parent in runs.items() for copy in copies_of(run)}
    names = _distinct_names({*runs.values(), *sweeps})
    jobs = [read_job(run, names[parent], _name_below(run, parent)) for run, parent in runs.items()]
    known = {key for job in jobs for key in job.settings}
    for sweep in dict.fromkeys(sweeps):
        jobs += _refused(sweep, names[sweep], known)
    if not jobs:
        raise ComparisonError(f"no runs in {', '.join(map(str, folders))}; name a sweep folder or a run folder")
    return jobs


def copies_of(run: Path) -> list[Path]:
    """The run folders of a bundle's copies; of any other run, and of a bundle without one, its own."""
    inside = run / COPIES
    copies = [path for path in sorted(inside.iterdir()) if _is_run(path)] if inside.is_dir() else []
    return copies or [run]


def _name_below(run: Path, parent: Path) -> str:
    """A job by its folder; a bundle's copy by the bundle's and its own: ``learned-seeds8-1a2b3c4d/seed3``."""
    return "/".join(part for part in run.relative_to(parent).parts if part != COPIES)


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (CONFIG_FILE, RESULT_FILE, METRICS_FILE))


def _is_job(path: Path) -> bool:
    """Whether a subfolder of a sweep is a job: it looks like a run, or it is empty as one that died at birth is."""
    if not path.is_dir() or path.name == SUPERSEDED or path.name.startswith("."):
        return False
    return _is_run(path) or not any(path.iterdir())


def _distinct_names(folders: Iterable[Path]) -> dict[Path, str]:
    """Each folder by as few of its last parts as tell it from the others."""
    names: dict[Path, str] = {}
    left, depth = set(folders), 1
    while left:
        by_name: dict[str, list[Path]] = {}
        for folder in left:
            by_name.setdefault("/".join(folder.parts[-depth:]), []).append(folder)
        names |= {same[0]: name for name, same in by_name.items() if len(same) == 1}
        left -= names.keys()
        depth += 1
    return names


def read_job(folder: Path, sweep: str, name: str | None = None) -> Job:
    """One job; whatever cannot be read makes it ``broken`` and is said in its error.

    Args:
        folder: its own.
        sweep: what it belongs to.
        name: of the job; its folder's if None.
    """
    troubles: list[str] = []
    config = _read(folder / CONFIG_FILE, lambda text: yaml.load(text, _Loader), troubles)
    result = _read(folder / RESULT_FILE, json.loads, troubles)
    settings = flat_settings(config)
    status = result.get("status")
    # A status of a later version is shown as it is.
    if not (isinstance(status, str) and re.fullmatch("[a-z][a-z _-]{0,30}", status)):
        if result:
            troubles.append(f"{RESULT_FILE} has no known status ({status!r})")
        status = BROKEN
    history = History()
    try:
        history = read_history(folder / METRICS_FILE)
    except FileNotFoundError:
        if status == COMPLETED:
            troubles.append(f"no {METRICS_FILE}")
    except (OSError, csv.Error) as unreadable:
        troubles.append(f"{METRICS_FILE} cannot be read ({_line(unreadable)})")
    error = " ".join(str(result.get("error") or "").split())
    seed = result.get("seed", settings.get(SEED))
    overrides = result.get("overrides")
    return Job(
        sweep=sweep,
        name=folder.name if name is None else name,
        folder=folder,
        # A number without the settings it belongs to cannot be compared.
        status=BROKEN if status == COMPLETED and not settings else status,
        error="; ".join(filter(None, [error, *troubles])),
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
        versions={str(name): str(value) for name, value in _mapping(result.get("versions")).items()},
        history=history,
    )


def _read(path: Path, parse: Any, troubles: list[str]) -> dict[str, Any]:
    """A file that holds a mapping; empty, with the reason added to ``troubles``, when it does not."""
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        troubles.append(f"no {path.name}")
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        troubles.append(f"{path.name} cannot be read ({_line(error)})")
    else:
        if isinstance(content, dict):
            return content
        troubles.append(f"{path.name} holds no settings" if content is None else f"{path.name} is no mapping")
    return {}


def _refused(sweep: Path, name: str, known: Collection[str]) -> Iterator[Job]:
    """Combinations that the sweep refused, as its ``invalid.json`` lists them.

    Of what was typed, settings that no other job has are left in the overrides: ``experiment=heads`` is none.
    """
    path = sweep / INVALID_FILE
    if not path.exists():
        return
    try:
        refused = json.loads(path.read_text(encoding="utf-8"))
        listed = [([str(each) for each in entry["overrides"]], _line(entry["reason"])) for entry in refused]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
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
    """The entries that are finite numbers."""
    return {
        str(name): number
        for name, number in _mapping(value).items()
        if isinstance(number, (int, float)) and not isinstance(number, bool) and math.isfinite(number)
    }


def _line(error: Any) -> str:
    """One line, whatever the text; for an exception without one, its kind."""
    return " ".join(str(error).split()) or type(error).__name__


def in_order(jobs: Iterable[Job], axes: Sequence[str]) -> list[Job]:
    """By their levels on the axes, then by name: the same whatever the order of the folders."""
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
    """One completed job per configuration: the same one run again brings no new evidence."""
    return list({tuple(sorted(job.settings.items())): job for job in jobs if job.completed}.values())
