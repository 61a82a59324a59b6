"""``comparison.html``: the comparison as one self-contained HTML file that needs no network access."""

import json
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template

from poslab.comparison.axes import SEED, order, short_names, show
from poslab.comparison.collect import STATUSES, Job
from poslab.comparison.gallery import gallery, png_element
from poslab.comparison.history import thinned
from poslab.comparison.numbers import DASH, interval_text, share_interval
from poslab.comparison.settings import Setting, lengths_of
from poslab.comparison.statements import Statement
from poslab.comparison.statistics import Interval
from poslab.comparison.tables import (
    OUT_OF_REACH,
    QUARTER,
    Column,
    columns,
    incomplete_text,
    job_name,
    length_text,
    natural,
    steps_text,
    title,
)
from poslab.runs.result import by_length

KINDS = {
    "different": "different",
    "suggestive": "suggestive",
    "equivalent": "equivalent within the margin",
    "unknown": "not known",
}
RESULTS = ("best/val/loss", "val/exact_match", "val/accuracy")
MOST_POINTS = 100_000
MOST_LEVELS = 8
FOREST_WIDTH, FOREST_PAD = 176, 14


def page(
    jobs: Sequence[Job],
    axes: Sequence[str],
    settings: Sequence[Setting],
    findings: Sequence[Statement],
    method: str,
    notes: Sequence[str],
    length_plot: bytes | None = None,
) -> str:
    """The whole page as HTML.

    Args:
        jobs: all jobs.
        axes: names of the settings that vary.
        settings: the jobs by setting.
        findings: the statements.
        method: note on how the statements were tested.
        notes: further notes.
        length_plot: PNG of exact match by length; None without one.
    """
    sections = {
        "findings": ("What the data say", _findings(findings, method, notes)),
        "incomplete": ("Not completed", _incomplete([job for job in jobs if not job.completed])),
        "settings": ("By setting", _settings(settings)),
        "lengths": ("By length", _lengths(settings, length_plot)),
        "charts": ("Curves and parameters", _charts(jobs)),
        "pictures": ("Heads and similarity", gallery(settings)),
        "jobs": ("All jobs", _jobs(jobs, axes)),
    }
    shown = {name: section for name, section in sections.items() if section[1]}
    statuses = Counter(job.status for job in jobs)
    here = files("poslab.comparison")
    return Template((here / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title(jobs)),
        source=escape(", ".join(sorted({job.sweep for job in jobs}))),
        varied=_varied(jobs, axes),
        badges=" ".join(_badge(status, f"{statuses[status]} ") for status in sorted(statuses, key=_severity)),
        nav="".join(f'<a href="#{name}">{heading}</a>' for name, (heading, _) in shown.items()),
        sections="\n".join(
            f'<section id="{name}">\n<h2>{heading}</h2>\n{body}\n</section>' for name, (heading, body) in shown.items()
        ),
        data=_json(jobs, axes, settings),
        css=(here / "page.css").read_text(encoding="utf-8"),
        js=(here / "page.js").read_text(encoding="utf-8"),
    )


def _severity(status: str) -> tuple[int, str]:
    return STATUSES.index(status) if status in STATUSES else len(STATUSES), status


def _varied(jobs: Sequence[Job], axes: Sequence[str]) -> str:
    """HTML list of the axes and their levels; of many levels, only their number and both ends."""
    names = short_names([*axes])
    items = []
    for axis in axes:
        levels = [
            show(level) for level in sorted({job.settings[axis] for job in jobs if axis in job.settings}, key=order)
        ]
        text = ", ".join(levels) if len(levels) <= MOST_LEVELS else f"{len(levels)} values, {levels[0]} to {levels[-1]}"
        items.append(f"<div><dt>{escape(names[axis])}</dt><dd>{escape(text)}</dd></div>")
    return f'<dl class="varied">{"".join(items)}</dl>' if items else ""


def _words(text: str) -> str:
    """Escape a text for HTML, with non-breaking spaces before per cent signs and around = and <."""
    for breakable in (" %", " = ", " < "):
        text = text.replace(breakable, breakable.replace(" ", "\u00a0"))
    return escape(text)


def _badge(status: str, before: str = "") -> str:
    return f'<span class="badge {escape(status)}">{before}{escape(status)}</span>'


def _findings(findings: Sequence[Statement], method: str, notes: Sequence[str]) -> str:
    items = "\n".join(
        f'<li class="{each.kind}"><b>{_words(each.text)}.</b>'
        + (f"<span>{_words(each.detail[:1].upper() + each.detail[1:])}.</span>" if each.detail else "")
        + "</li>"
        for each in findings
    )
    kinds = dict.fromkeys(each.kind for each in findings)
    key = "".join(f'<span class="{kind}">{KINDS[kind]}</span>' for kind in KINDS if kind in kinds)
    small = "".join(f'<p class="notes">{_words(note)}</p>' for note in filter(None, [method, *notes]))
    return f'<p class="key" aria-hidden="true">{key}</p>\n<ul class="findings">\n{items}\n</ul>\n{small}'


def _incomplete(jobs: Sequence[Job]) -> str:
    """Table of the incomplete jobs; jobs with the same status and reason share a row."""
    if not jobs:
        return ""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for job in jobs:
        by_reason.setdefault((job.status, job.error), []).append(job_name(job))
    rows = "\n".join(
        f'<tr><td>{_badge(status)}</td><td class="wrap">{escape(error) or DASH}</td>'
        f'<td class="wrap">{"".join(f"<code>{escape(name)}</code>" for name in names)}</td></tr>'
        for (status, error), names in by_reason.items()
    )
    head = '<thead><tr><th scope="col">status</th><th scope="col">reason</th><th scope="col">jobs</th></tr></thead>'
    return f'<div class="scroll" tabindex="0"><table>{head}<tbody>\n{rows}\n</tbody></table></div>'


def _settings(settings: Sequence[Setting]) -> str:
    if not any(setting.jobs for setting in settings):
        return ""
    names = short_names([*settings[0].levels])
    heads = [_head(name) for name in names.values()]
    heads += [_head("n", True), _head("exact match", True), _forest_head()]
    heads += [_head(name, True) for name in ("next-token accuracy", "val loss", QUARTER)]
    rows = "\n".join(f"<tr>{_setting_cells(setting)}</tr>" for setting in settings)
    single = any(len(setting.jobs) == 1 for setting in settings)
    lead = "Means over n seeds with their 95 % intervals (Student's t); geometric means for losses and steps. "
    lead += "The plot shows the seeds, their mean and its interval."
    lead += " A setting with one seed has no interval." * single
    table = f'<table class="sortable"><thead><tr>{"".join(heads)}</tr></thead><tbody>\n{rows}\n</tbody></table>'
    return f'<p class="lead">{lead}</p>\n<div class="scroll" tabindex="0">{table}</div>'


def _lengths(settings: Sequence[Setting], plot: bytes | None) -> str:
    lengths = lengths_of(settings)
    if not lengths:
        return ""
    heads = "".join(_head(name) for name in short_names([*settings[0].levels]).values())
    heads += "".join(_head(f"at {length}", True) for length in lengths)
    rows = "\n".join(
        f"<tr>{''.join(_cell(show(level), level) for level in setting.levels.values())}"
        f"{''.join(_length_cell(setting, length) for length in lengths)}</tr>"
        for setting in settings
        if setting.by_length or setting.out_of_reach
    )
    lead = "Exact match at each length, means over seeds with their 95 % intervals (Student's t)."
    if any(setting.out_of_reach for setting in settings):
        lead += " Point at a cell that is out of reach to see why."
    table = f'<table class="sortable"><thead><tr>{heads}</tr></thead><tbody>\n{rows}\n</tbody></table>'
    picture = "" if plot is None else f"<figure>{png_element(plot, 'exact match by length')}</figure>"
    return f'<p class="lead">{lead}</p>\n<div class="scroll" tabindex="0">{table}</div>\n{picture}'


def _length_cell(setting: Setting, length: int) -> str:
    why = setting.out_of_reach.get(length)
    return _interval(length_text(setting, length), setting.by_length.get(length)) if why is None else _unreached(why)


def _unreached(why: str, kind: str = "") -> str:
    return f'<td class="{f"n {kind}".strip()} faint" data-v="" title="{escape(why)}">{OUT_OF_REACH}</td>'


def _head(name: str, numeric: bool = False, extra: bool = False) -> str:
    kind = " ".join(["n"] * numeric + ["extra"] * extra)
    attribute = f' class="{kind}"' if kind else ""
    return f'<th{attribute} aria-sort="none" scope="col"><button type="button">{escape(name)}</button></th>'


def _setting_cells(setting: Setting) -> str:
    cells = [_cell(show(level), level) for level in setting.levels.values()]
    incomplete = f" <small>{escape(incomplete_text(setting))}</small>" if setting.incomplete else ""
    cells += [f'<td class="n" data-v="{len(setting.jobs)}">{incomplete} {len(setting.jobs)}</td>']
    cells += [_interval(share_interval(setting.exact_match), setting.exact_match), f"<td>{_forest(setting)}</td>"]
    cells += [_interval(share_interval(setting.accuracy), setting.accuracy)]
    cells += [_interval(interval_text(setting.loss), setting.loss), _interval(steps_text(setting), setting.steps)]
    return "".join(cells)


def _interval(text: str, interval: Interval | None) -> str:
    mean, bracket, ends = text.partition(" [")
    small = f" <small>[{escape(ends)}</small>" if bracket else ""
    return f'<td class="n" data-v="{"" if interval is None else interval.mean}">{escape(mean)}{small}</td>'


def _cell(text: str, value: str | float | None, numeric: bool = False, kind: str = "") -> str:
    """A table cell with its text and the value by which it is sorted."""
    kind = " ".join(filter(None, ["n" if numeric else "", kind]))
    attribute = f' class="{kind}"' if kind else ""
    return f'<td{attribute} data-v="{"" if value is None else escape(str(value))}">{escape(text)}</td>'


def _at(share: float) -> str:
    return f"{FOREST_PAD + (FOREST_WIDTH - 2 * FOREST_PAD) * max(0.0, min(1.0, share)):.1f}"


def _forest_head() -> str:
    ticks = "".join(f'<text x="{_at(share)}" y="16">{share:.0%}</text>' for share in (0.0, 0.5, 1.0))
    svg = f'<svg class="forest" viewBox="0 0 {FOREST_WIDTH} 22" aria-hidden="true">{ticks}</svg>'
    return f'<th scope="col">{svg}</th>'


def _forest(setting: Setting) -> str:
    """The plot in one row of the table: the exact match of the seeds, their mean and its interval, as SVG."""
    interval = setting.exact_match
    parts = [f'<path class="grid" d="M{_at(share)} -8V31"/>' for share in (0.0, 0.5, 1.0)]
    if interval is None:
        return f'<svg class="forest" viewBox="0 0 {FOREST_WIDTH} 22" aria-hidden="true">{"".join(parts)}</svg>'
    if interval.low is not None and interval.high is not None:
        parts.append(f'<path class="range" d="M{_at(interval.low)} 11H{_at(interval.high)}"/>')
    values = [job.metrics["val/exact_match"] for job in setting.jobs if "val/exact_match" in job.metrics]
    parts += [f'<circle class="seed" cx="{_at(value)}" cy="11" r="2.5"/>' for value in values]
    parts.append(f'<circle class="mean" cx="{_at(interval.mean)}" cy="11" r="4.5"/>')
    label = escape(f"exact match {share_interval(interval)}")
    return f'<svg class="forest" viewBox="0 0 {FOREST_WIDTH} 22" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _charts(jobs: Sequence[Job]) -> str:
    if not any(job.history.curves for job in jobs):
        return ""
    return """<p class="lead">Point at a curve to see its job; click on a name to hide or show its jobs.</p>
<div class="tools"><label>colour by <select id="group"></select></label></div>
<div class="legend" id="legend" role="group" aria-label="Show or hide"></div>
<div class="charts">
<div><div class="chart-head"><label>curve <select id="curve"></select></label>
<label><input type="checkbox" id="log" checked> log scale</label></div><div class="chart" id="curves"></div></div>
<div><div class="chart-head"><label>parameters against <select id="result"></select></label></div>
<div class="chart" id="parameters"></div></div>
</div>
<noscript><p>The charts need JavaScript. The folder comparison beside this file has them as pictures.</p></noscript>"""


def _jobs(jobs: Sequence[Job], axes: Sequence[str]) -> str:
    shown = columns(jobs, axes)
    # Levels are aligned like text, even if they are numbers.
    numeric = {
        column.name: column.name not in axes and any(isinstance(column.get(job), (int, float)) for job in jobs)
        for column in shown
    }
    heads = "".join(_head(column.title, numeric[column.name], not column.main) for column in shown)
    rows = "\n".join(
        f"<tr>{''.join(_job_cell(column, job, numeric[column.name]) for column in shown)}</tr>" for job in jobs
    )
    return f"""<div class="tools"><label>filter <input type="search" id="filter" placeholder="word in a row"></label>
<label><input type="checkbox" id="more"> all columns</label><span class="faint" id="left" role="status"></span></div>
<div class="scroll" tabindex="0"><table class="sortable" id="job-table"><thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody></table></div>"""


def _job_cell(column: Column, job: Job, numeric: bool) -> str:
    value = column.get(job)
    extra = "" if column.main else "extra"
    if column.name == "status":
        # Only jobs that did not complete get a coloured badge.
        shown = f'<span class="faint">{job.status}</span>' if job.completed else _badge(job.status)
        return f'<td data-v="{escape(job.status)}">{shown}</td>'
    if column.name == "job":
        return _cell(job_name(job), job_name(job), kind="mono")
    why_not = column.why_not(job)
    if value is None and why_not is not None:
        return _unreached(why_not, extra)
    if isinstance(value, str):
        long = " wrap" if column.name in ("error", "overrides", "out_of_reach") else ""
        return _cell(value, value, numeric, f"{extra}{long}".strip())
    return _cell(column.text(value), value, numeric, extra)


def _json(jobs: Sequence[Job], axes: Sequence[str], settings: Sequence[Setting]) -> str:
    """The data of the charts as JSON, with "<" escaped so that it cannot end the script element."""
    names = short_names([*axes])
    index = {tuple(setting.levels.values()): at for at, setting in enumerate(settings)}
    steps: dict[tuple[float, ...], int] = {}
    most = max(24, min(120, MOST_POINTS // (4 * len(jobs))))
    drawn = [
        {
            "name": job.name,
            "status": job.status,
            "seed": job.seed,
            "setting": index[tuple(job.settings.get(axis) for axis in axes if axis != SEED)],
            "levels": {axis: show(job.settings[axis]) for axis in axes if axis in job.settings},
            "parameters": job.parameters.get("total"),
            "results": _results(job),
            "curves": _curves(job, steps, most),
        }
        for job in jobs
        if job.settings and job.folder is not None
    ]
    levels = {axis: sorted({job.settings.get(axis) for job in jobs if job.settings}, key=order) for axis in axes}
    content = {
        "axes": [
            {"key": axis, "name": names[axis], "levels": [show(level) for level in levels[axis]]} for axis in axes
        ],
        "settings": [setting.label for setting in settings],
        "jobs": drawn,
        "steps": [list(each) for each in steps],
    }
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _results(job: Job) -> dict[str, float]:
    """The results that are plotted against parameters; empty for a job that did not complete."""
    if not job.completed:
        return {}
    found: dict[str, float] = {name: _short(job.metrics[name]) for name in RESULTS if name in job.metrics}
    reached = job.history.reached.get("val/exact_match")
    return found if reached is None else found | {"steps": reached.step}


def _curves(job: Job, steps: dict[tuple[float, ...], int], most: int) -> dict[str, tuple[int, list[float]]]:
    """Curve name to the index of its x values in ``steps`` and its y values; many jobs share the same x values."""
    curves: dict[str, tuple[list[int], list[float]]] = dict(job.history.curves)
    for score, by in by_length(job.metrics).items():
        curves[f"length/{score}"] = [*by], [*by.values()]
    for name in sorted(job.metrics, key=natural):
        part, _, rest = name.partition("/")
        if part == "neighbour_similarity" and (offset := rest.removeprefix("offset_")).isdecimal():
            _add(curves, "neighbour_similarity", int(offset), job.metrics[name])
    found = {}
    for name, curve in curves.items():
        xs, ys = thinned(*curve, most)
        found[name] = steps.setdefault(tuple(xs), len(steps)), [_short(y) for y in ys]
    return found


def _add(curves: dict[str, tuple[list[int], list[float]]], name: str, x: int, y: float) -> None:
    xs, ys = curves.setdefault(name, ([], []))
    xs.append(x)
    ys.append(y)


def _short(value: float) -> float:
    """Round to four significant digits; to six just below 1, so that such a share is not rounded to 1."""
    return float(f"{value:.6g}" if 0.999 < value < 1 else f"{value:.4g}")
