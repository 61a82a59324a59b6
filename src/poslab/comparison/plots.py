"""The plots of a comparison as PNG files, for reports and for machines without a browser.

They use matplotlib without pyplot, as ``poslab.pictures`` does, but they do not import torch.
"""

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from poslab.comparison.collect import Job
from poslab.comparison.settings import Setting, lengths_of
from poslab.comparison.statistics import Interval

# Distinguishable with any type of colour vision, on white and on black. Source: the palette of Okabe and Ito, adapted.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#7A5195", "#6B6B6B")
DASHES: tuple[Any, ...] = ("-", "--", ":", "-.")
MARKS = ("o", "s", "^", "D")
MOST_LABELS = 40
LENGTH_PLOT = "exact_match_by_length.png"


class Style(NamedTuple):
    """Colour of a setting, and the index of the dash and marker that distinguish settings of the same colour."""

    colour: str
    kind: int


def plots(jobs: Sequence[Job], settings: Sequence[Setting]) -> dict[str, bytes]:
    """File name to PNG bytes; plots without data are left out."""
    style = {id(job): _style(at) for at, setting in enumerate(settings) for job in setting.jobs}
    made = {
        "loss_curves.png": _curves(jobs, settings, style),
        "accuracy_by_setting.png": _by_setting(settings),
        "parameters_against_result.png": _parameters(settings, style),
        LENGTH_PLOT: _by_length(settings),
    }
    return {name: png for name, png in made.items() if png is not None}


def _style(at: int) -> Style:
    return Style(COLOURS[at % len(COLOURS)], at // len(COLOURS) % len(DASHES))


def _figure(width: float, height: float) -> tuple[Any, Any]:
    # Imported here because matplotlib is slow to import, and `--help` and error messages do not need it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    return figure, axes


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    # Without the version of matplotlib in the metadata, so that the same jobs give the same bytes.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    figure.clear()
    return buffer.getvalue()


def _legend(axes: Any, settings: Sequence[Setting], style: dict[int, Style], points: bool = False) -> None:
    from matplotlib.lines import Line2D

    shown = [(setting.label, style[id(setting.jobs[0])]) for setting in settings if setting.jobs]
    if not 1 < len(shown) <= MOST_LABELS:
        return
    lines = [
        Line2D([], [], color=colour, linestyle="" if points else DASHES[kind], marker=MARKS[kind] if points else "")
        for _, (colour, kind) in shown
    ]
    labels = [label for label, _ in shown]
    axes.legend(lines, labels, fontsize=7, markerscale=0.7, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _curves(jobs: Sequence[Job], settings: Sequence[Setting], style: dict[int, Style]) -> bytes | None:
    drawn = [job for job in jobs if any(value > 0 for value in job.history.curves.get("val/loss", ([], []))[1])]
    if not drawn:
        return None
    figure, axes = _figure(8, 4.5)
    for job in drawn:
        colour, kind = style.get(id(job), Style("#999999", 2))
        axes.plot(*job.history.curves["val/loss"], color=colour, linestyle=DASHES[kind], linewidth=1, alpha=0.75)
    axes.set_yscale("log")
    axes.set_xlabel("step", fontsize=9)
    axes.set_ylabel("validation loss", fontsize=9)
    axes.set_title("Validation loss of every job", fontsize=10, loc="left")
    _legend(axes, settings, style)
    return _png(figure)


def _by_setting(settings: Sequence[Setting]) -> bytes | None:
    shown: list[tuple[str, Interval, Setting]] = [
        (setting.label, setting.exact_match, setting) for setting in settings if setting.exact_match is not None
    ]
    if not shown:
        return None
    figure, axes = _figure(8, min(20.0, 1.2 + 0.28 * len(shown)))
    for at, (_, interval, setting) in enumerate(shown):
        values = [job.metrics["val/exact_match"] for job in setting.jobs if "val/exact_match" in job.metrics]
        axes.plot(values, [at] * len(values), ".", color="#999999", markersize=4)
        if interval.low is not None and interval.high is not None:
            axes.plot([max(0, interval.low), min(1, interval.high)], [at, at], color=COLOURS[0], linewidth=2)
        axes.plot([interval.mean], [at], "o", color=COLOURS[0], markersize=5)
    every = -(-len(shown) // (2 * MOST_LABELS))
    axes.set_yticks(range(0, len(shown), every), [label for label, _, _ in shown[::every]], fontsize=8)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel("exact match: seeds, mean and 95 % interval", fontsize=9)
    axes.set_title("Exact match by setting", fontsize=10, loc="left")
    return _png(figure)


def _parameters(settings: Sequence[Setting], style: dict[int, Style]) -> bytes | None:
    drawn = [
        (job.parameters["total"], job.metrics["best/val/loss"], style[id(job)])
        for setting in settings
        for job in setting.jobs
        if job.parameters.get("total", 0) > 0 and job.metrics.get("best/val/loss", 0) > 0
    ]
    if not drawn:
        return None
    figure, axes = _figure(8, 4.5)
    for count, loss, (colour, kind) in drawn:
        axes.plot(count, loss, MARKS[kind], color=colour, markersize=4, alpha=0.8)
    counts = [count for count, _, _ in drawn]
    # A logarithmic axis over less than a factor of ten would have almost no ticks.
    if max(counts) >= 10 * min(counts):
        axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("trainable parameters", fontsize=9)
    axes.set_ylabel("best validation loss", fontsize=9)
    axes.set_title("Parameters against result", fontsize=10, loc="left")
    _legend(axes, settings, style, points=True)
    return _png(figure)


def _by_length(settings: Sequence[Setting]) -> bytes | None:
    """Exact match by length, one line per setting: the mean over seeds with its interval; a cross if out of reach."""
    lengths = lengths_of(settings)
    if len(lengths) < 2:
        return None
    figure, axes = _figure(8, 4.5)
    trained = {job.trained_to for setting in settings for job in setting.jobs if job.trained_to is not None}
    if len(trained) == 1:
        axes.axvspan(min(lengths[0], *trained) - 0.5, max(trained) + 0.5, color="#EEEEEE")
    width = 0.012 * (lengths[-1] - lengths[0])
    for at, setting in enumerate(settings):
        colour, kind = _style(at)
        # Shifted sideways, so that bars and crosses of several settings at one length do not overlap.
        shift = width * ((at % 9) - 4) / 2
        points = [(length + shift, interval) for length, interval in setting.by_length.items()]
        means = [interval.mean for _, interval in points]
        axes.plot([x for x, _ in points], means, color=colour, linestyle=DASHES[kind], marker=MARKS[kind], markersize=4)
        for x, interval in points:
            if interval.low is not None and interval.high is not None:
                axes.plot([x, x], [max(0, interval.low), min(1, interval.high)], color=colour, linewidth=1.5)
        missing = [length + shift for length in setting.out_of_reach]
        axes.plot(missing, [-0.03] * len(missing), "x", color=colour, markersize=5)
    axes.set_xticks(lengths)
    axes.set_ylim(-0.06, 1.03)
    axes.set_xlabel("length (shaded: up to the longest training length; x: out of reach)", fontsize=9)
    axes.set_ylabel("exact match: mean and 95 % interval", fontsize=9)
    axes.set_title("Exact match by length", fontsize=10, loc="left")
    _legend(axes, settings, {id(setting.jobs[0]): _style(at) for at, setting in enumerate(settings) if setting.jobs})
    return _png(figure)
