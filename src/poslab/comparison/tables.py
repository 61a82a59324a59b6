"""The comparison as ``comparison.csv`` and as Markdown, ``comparison.md``."""

import csv
import io
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from poslab.comparison.axes import SEED, short_names, show
from poslab.comparison.collect import Job
from poslab.comparison.numbers import DASH, count, exactly, interval_text, number, percent, share_interval
from poslab.comparison.settings import Setting, lengths_of
from poslab.comparison.statements import Statement

Cell = str | float | None
FIRST_STEP = "first step at 99 % exact match"
RATIO, ROWS, SEEN = "position_over_token", "distinct_rows", "seen_in_training"
OUT_OF_REACH = "out of reach"
SCORES = {
    "exact_match": "exact match",
    "accuracy": "next-token accuracy",
    "free_accuracy": "free-running accuracy",
}
TEST = (
    ("test/loss", "test loss", number),
    ("test/accuracy", "next-token test accuracy", percent),
    ("test/exact_match", "test exact match", percent),
)
QUARTER = "steps to a quarter loss"
MARKS = {"different": "**", "suggestive": "*", "equivalent": "", "unknown": "*"}


class Column(NamedTuple):
    """One column of the table of jobs.

    Attributes:
        name: header in the CSV file.
        title: header on the page.
        get: returns the value for a job; None for an empty cell.
        text: formats a number for the page.
        main: whether the column is shown by default.
        why_not: returns the reason why a job cannot have this number; None if it can, or if the reason is unknown.
    """

    name: str
    title: str
    get: Callable[[Job], Cell]
    text: Callable[[float | None], str] = number
    main: bool = True
    why_not: Callable[[Job], str | None] = lambda job: None


def columns(jobs: Sequence[Job], axes: Sequence[str]) -> list[Column]:
    """The columns of the table of these jobs; the duration, which differs from run to run, comes last."""
    names = short_names([*axes])
    several = len({job.sweep for job in jobs}) > 1
    parts = dict.fromkeys(part for job in jobs for part in job.parameters)
    scores = [
        (length, score)
        for score in SCORES
        for length in sorted({length for job in jobs for length in (*job.by_length, *job.lengths_out_of_reach)})
        if any(f"length/{length}/{score}" in job.metrics for job in jobs)
        or (score != "free_accuracy" and any(length in job.lengths_out_of_reach for job in jobs))
    ]
    any_out_of_reach = any(job.out_of_reach for job in jobs)
    return [
        *([Column("sweep", "sweep", lambda job: job.sweep)] if several else []),
        Column("job", "job", lambda job: job.name),
        *(_setting(axis, names[axis]) for axis in axes if axis != SEED),
        Column("seed", "seed", lambda job: job.seed, text=show),
        Column("status", "status", lambda job: job.status),
        Column("error", "error", lambda job: job.error, main=False),
        Column("overrides", "overrides", lambda job: " ".join(job.overrides), main=False),
        *(_parameters(part) for part in sorted(parts, key=lambda part: (part != "total", part))),
        _metric("best/val/loss", "best val loss", main=False),
        _metric("best/val/accuracy", "next-token accuracy at best val loss", percent, main=False),
        _metric("best/val/exact_match", "exact match at best val loss", percent, main=False),
        _metric("val/loss", "val loss"),
        _metric("val/accuracy", "next-token accuracy", percent),
        _metric("val/exact_match", "exact match", percent),
        _metric("train/loss", "train loss"),
        *(
            _metric(name, title, text, main=False)
            for name, title, text in TEST
            if any(name in job.metrics for job in jobs)
        ),
        *(_at_length(length, score) for length, score in scores),
        *([Column("out_of_reach", "out of reach", _out_of_reach, main=False)] if any_out_of_reach else []),
        _metric("neighbour_similarity/offset_1", "neighbour similarity"),
        Column("learning/steps_to_quarter", QUARTER, _quarter, _whole),
        Column("learning/steps_to_0.1", "steps to 0.1 nats", _nats, _whole, main=False),
        Column("learning/area", "area under the loss curve", lambda job: job.learning.area, main=False),
        Column("learning/source", "losses read", lambda job: job.learning.source, main=False),
        *_stored(jobs),
        _reached("val/exact_match", FIRST_STEP),
        _reached("val/accuracy", "first step at 99 % next-token accuracy", main=False),
        Column("wall_seconds", "seconds", lambda job: job.wall_seconds),
    ]


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key that orders numbers within names by value: 9 before 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _setting(axis: str, title: str) -> Column:
    return Column(axis, title, lambda job: job.settings.get(axis), text=show)


def _parameters(part: str) -> Column:
    title = "parameters" if part == "total" else f"{part.replace('_', ' ')} parameters"
    return Column(f"parameters/{part}", title, lambda job: job.parameters.get(part), text=_whole, main=part == "total")


def _metric(name: str, title: str, text: Callable[[float | None], str] = number, main: bool = True) -> Column:
    return Column(name, title, lambda job: job.metrics.get(name), text, main)


def _reached(score: str, title: str, main: bool = True) -> Column:
    name = f"steps_to_99/{score.removeprefix('val/')}"
    return Column(
        name, title, lambda job: reached.step if (reached := job.history.reached.get(score)) else None, _whole, main
    )


def _quarter(job: Job) -> float | None:
    return job.learning.quarter and job.learning.quarter.step


def _nats(job: Job) -> float | None:
    return job.learning.nats and job.learning.nats.step


def _stored(jobs: Sequence[Job]) -> list[Column]:
    """Columns of what only newer results hold: the scale of the start, and the rows of the validation set."""
    shown = [
        Column("start/position_over_token", "positions / tokens at the start", lambda job: job.start.get(RATIO)),
        Column("validation/distinct_rows", "distinct validation rows", lambda job: job.validation.get(ROWS), _whole),
        Column("validation/seen_in_training", "validation rows seen in training", _seen, percent),
    ]
    found = [column for column in shown if any(column.get(job) is not None for job in jobs)]
    return [column._replace(main=column.get is _seen) for column in found]


def _seen(job: Job) -> float | None:
    return job.validation.get(SEEN)


def _whole(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def _at_length(length: int, score: str) -> Column:
    name = f"length/{length}/{score}"
    return Column(
        name,
        f"{SCORES[score]} at {length}",
        lambda job: job.metrics.get(name),
        percent,
        main=score == "exact_match",
        why_not=lambda job: job.lengths_out_of_reach.get(length),
    )


def _out_of_reach(job: Job) -> Cell:
    return "; ".join(f"{name}: {why}" for name, why in job.out_of_reach.items())


def csv_table(jobs: Sequence[Job], axes: Sequence[str]) -> str:
    """The jobs as CSV, one row per job, numbers with all digits."""
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    shown = columns(jobs, axes)
    table.writerow([column.name for column in shown])
    for job in jobs:
        cells = [column.get(job) for column in shown]
        table.writerow(["" if cell is None else cell if isinstance(cell, str) else exactly(cell) for cell in cells])
    return text.getvalue()


def markdown(
    jobs: Sequence[Job],
    settings: Sequence[Setting],
    findings: Sequence[Statement],
    method: str,
    notes: Sequence[str],
    length_plot: str | None = None,
) -> str:
    """The comparison as Markdown: statements, one table row per setting, and the incomplete jobs with their reasons.

    Args:
        jobs: all jobs.
        settings: the jobs by setting.
        findings: the statements.
        method: note on how the statements were tested.
        notes: further notes.
        length_plot: path of the plot of exact match by length, relative to the text; None without a plot.
    """
    lines = [f"# {title(jobs)}", "", *(_item(statement) for statement in findings), ""]
    lines += [line for note in filter(None, [method, *notes]) for line in (note, "")]
    if any(setting.jobs for setting in settings):
        lines += ["## By setting", "", *_setting_table(settings), ""]
        lines += ["Means over n seeds with 95 % intervals (Student's t); geometric means for losses and steps."]
        if any(len(setting.jobs) == 1 for setting in settings):
            lines[-1] += " A setting with n = 1 has no interval."
        lines += [""]
    if lengths_of(settings):
        lines += ["## By length", "", "Exact match at each length, means with 95 % intervals.", ""]
        lines += [*_length_table(settings), ""]
        lines += [line for why in _reasons(settings) for line in (f"Out of reach: {_cell(why)}.", "")]
    if length_plot is not None:
        lines += [f"![Exact match by length]({length_plot})", ""]
    incomplete = [job for job in jobs if not job.completed]
    if incomplete:
        lines += ["## Not completed", "", "| job | status | reason |", "|---|---|---|"]
        lines += [f"| {_cell(job_name(job))} | {job.status} | {_cell(job.error)} |" for job in incomplete]
        lines += [""]
    return "\n".join(lines)


def title(jobs: Sequence[Job]) -> str:
    return f"Comparison of {count(len(jobs), 'job')}"


def job_name(job: Job) -> str:
    """Name of the job's folder; for an invalid combination, which has none, its overrides."""
    return job.name or " ".join(job.overrides) or "a job without overrides"


def _item(statement: Statement) -> str:
    mark = MARKS[statement.kind]
    return f"- {mark}{_cell(statement.text)}.{mark}" + (f" ({_cell(statement.detail)}.)" if statement.detail else "")


def _setting_table(settings: Sequence[Setting]) -> list[str]:
    axes = list(settings[0].levels)
    head = [
        *short_names(axes).values(),
        "n",
        "exact match",
        "next-token accuracy",
        "val loss",
        QUARTER,
        "not completed",
    ]
    rows = [
        [
            *(show(setting.levels[axis]) for axis in axes),
            str(len(setting.jobs)),
            share_interval(setting.exact_match),
            share_interval(setting.accuracy),
            interval_text(setting.loss),
            steps_text(setting),
            incomplete_text(setting),
        ]
        for setting in settings
    ]
    # Drop the last column if it is empty.
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    return _lines(head, rows)


def _length_table(settings: Sequence[Setting]) -> list[str]:
    lengths = lengths_of(settings)
    rows = [
        [*map(show, setting.levels.values()), *(length_text(setting, length) for length in lengths)]
        for setting in settings
        if setting.by_length or setting.out_of_reach
    ]
    return _lines([*short_names([*settings[0].levels]).values(), *map(str, lengths)], rows)


def length_text(setting: Setting, length: int) -> str:
    """The exact match of a setting at a length with its interval, or "out of reach"."""
    return OUT_OF_REACH if length in setting.out_of_reach else share_interval(setting.by_length.get(length))


def _reasons(settings: Sequence[Setting]) -> list[str]:
    return [
        f"{setting.label} at {length}, {why}" for setting in settings for length, why in setting.out_of_reach.items()
    ]


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines]


def steps_text(setting: Setting) -> str:
    """The mean steps to a quarter of the start loss; if not all jobs get there, how many do."""
    if setting.steps is not None:
        return interval_text(setting.steps)
    return f"{setting.reached} of {len(setting.jobs)} jobs" if setting.jobs else DASH


def incomplete_text(setting: Setting) -> str:
    return ", ".join(f"{n} {status}" for status, n in setting.incomplete.items())


def _cell(text: str) -> str:
    """Escape a text for a Markdown table cell: one line, without markup."""
    return re.sub(r"([\\`*|<]|\](?=\())", r"\\\1", " ".join(text.split()))
