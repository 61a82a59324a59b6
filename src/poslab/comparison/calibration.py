"""How often the comparison is right: simulated sweeps with a known truth, written as run folders and compared.

``python -m poslab.comparison.calibration`` writes a table of the verdicts on sweeps whose truth is known: ``make
calibrate`` puts it into ``docs/calibration.md``. The curves have the size of the default run: 360 steps, a loss that is
logged every 10 steps, validation every 120 steps.
"""

import argparse
import csv
import json
import math
import platform
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

from poslab.comparison.axes import varying
from poslab.comparison.collect import collect
from poslab.comparison.statements import statements
from poslab.comparison.verdicts import MARGIN, Verdict
from poslab.runs.names import CONFIG_FILE, METRICS_FILE, RESULT_FILE

STEPS, LOGGED, VALIDATED = 360, 10, 120
START = math.log(65)
"""Loss of a uniform guess over the vocabulary of the default run."""
SPREAD = 0.07
"""Standard deviation of a seed's log ratio of steps, first level over second."""
COMMON = 0.12
"""Standard deviation of what a seed does to both levels."""
NOISE = 0.06
"""Relative standard deviation of the loss of one batch."""
MIDDLE = 75.0
"""Steps to half of the start loss, in the middle of the seeds."""


@dataclass(frozen=True)
class Truth:
    """A simulated sweep of two levels.

    Attributes:
        ratio: steps of the first level over those of the second.
        settings: the ratio in each matched setting, times ``ratio``.
        learns: probability that a run learns at all; a run that does not keeps the loss of its start.
    """

    ratio: float = 1.0
    settings: tuple[float, ...] = (1.0,)
    learns: float = 1.0


def simulate(folder: Path, truth: Truth, seeds: int, draw: random.Random) -> None:
    """Write a sweep of run folders: two schemes, the settings of ``truth``, and ``seeds`` seeds."""
    for seed in range(seeds):
        common = draw.gauss(0, COMMON)
        for at, setting in enumerate(truth.settings):
            both = common + draw.gauss(0, COMMON / 2)
            half = math.log(truth.ratio * setting) / 2
            for name, effect in (("one", half), ("two", -half)):
                middle = MIDDLE * math.exp(both + effect + draw.gauss(0, SPREAD / math.sqrt(2)))
                learns = draw.random() < truth.learns
                heads = 2 ** (at + 2)
                _write_run(folder / f"{name}-{heads}-{seed}", name, heads, seed, middle if learns else math.inf, draw)


def _loss(step: float, middle: float) -> float:
    return 0.002 + START / (1 + (step / middle) ** 4)


def _write_run(folder: Path, pos: str, n_heads: int, seed: int, middle: float, draw: random.Random) -> None:
    folder.mkdir(parents=True)
    config = {
        "seed": seed,
        "pos": {"_target_": f"poslab.positions.{pos}.Scheme"},
        "task": {"_target_": "poslab.tasks.copy.CopyTask", "length": 6, "min_length": None},
        "model": {"d_model": 32, "n_heads": n_heads, "dropout": 0.0},
    }
    losses = [_loss(step, middle) * math.exp(draw.gauss(0, NOISE)) for step in range(STEPS)]
    rows: list[dict[str, float]] = []
    logged = [*range(0, STEPS, LOGGED), STEPS - 1]
    for step in sorted({*logged, *range(0, STEPS + 1, VALIDATED)}):
        row: dict[str, float] = {"step": step}
        if step in logged:
            before = max((other for other in logged if other < step), default=-1)
            row |= {"train/loss": losses[step], "train/loss_mean": fmean(losses[before + 1 : step + 1])}
        if step % VALIDATED == 0:
            # 512 validation rows are 32 batches.
            value = _loss(step, middle) * math.exp(draw.gauss(0, NOISE / math.sqrt(32)))
            row |= {"val/loss": value, "val/exact_match": math.exp(-6 * value)}
        rows.append(row)
    with open(folder / METRICS_FILE, "w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, ["step", "train/loss", "train/loss_mean", "val/loss", "val/exact_match"])
        table.writeheader()
        table.writerows(rows)
    metrics = {name: value for name, value in rows[-1].items() if name != "step"}
    result = {"status": "completed", "seed": seed, "metrics": metrics, "overrides": []}
    # JSON is YAML, and faster to read.
    (folder / CONFIG_FILE).write_text(json.dumps(config), encoding="utf-8")
    (folder / RESULT_FILE).write_text(json.dumps(result), encoding="utf-8")


def verdict_on(truth: Truth, seeds: int, draw: random.Random) -> Verdict:
    """The verdict of the comparison on both schemes of one simulated sweep."""
    with tempfile.TemporaryDirectory(prefix="poslab-calibration-") as folder:
        simulate(Path(folder), truth, seeds, draw)
        jobs = collect([Path(folder)])
    _, verdicts, _ = statements(jobs, varying([job.settings for job in jobs]))
    return next(verdict for verdict in verdicts if verdict.axis == "pos")


def claims_right(verdict: Verdict, truth: Truth) -> bool:
    """Whether the verdict is *different*, and in the direction of the truth."""
    wanted = truth.ratio if verdict.first == "pos=one" else 1 / truth.ratio
    return verdict.verdict == "different" and verdict.ratio is not None and (verdict.ratio > 1) == (wanted > 1)


def covers(verdict: Verdict, truth: Truth) -> bool:
    """Whether the 95 % interval of the ratio covers the truth."""
    wanted = truth.ratio if verdict.first == "pos=one" else 1 / truth.ratio
    return verdict.low is not None and verdict.high is not None and verdict.low <= wanted <= verdict.high


def names_interaction(verdict: Verdict) -> bool:
    """Whether both settings are reported, one with a ratio above 1 and one below."""
    ratios = [row["ratio"] for row in verdict.by_setting]
    return verdict.verdict == "different" and len(ratios) == 2 and min(ratios) < 1 < max(ratios)


def within_margin(verdict: Verdict, truth: Truth) -> bool:
    """Whether both levels are said to be within the margin: equivalent, or different by less than that."""
    return verdict.bound is not None and verdict.bound < MARGIN


def _is(kind: str) -> Callable[[Verdict, Truth], bool]:
    return lambda verdict, truth: verdict.verdict == kind


NONE, SLIGHT, LIMIT, CLEAR = Truth(1.0), Truth(1.13), Truth(1.25), Truth(1.3)
CROSSED = Truth(1.0, settings=(2.0, 0.5))
HALF = Truth(1.0, learns=0.5)
LINES: tuple[tuple[str, Truth, Callable[[Verdict, Truth], bool], Mapping[int, str]], ...] = (
    ("claims where there is no effect", NONE, _is("different"), {3: "<= 6 %", 8: "<= 6 %"}),
    ("*suggestive* where there is no effect", NONE, _is("suggestive"), {}),
    ("claims where half of the runs learn, no effect", HALF, _is("different"), {3: "<= 6 %", 8: "<= 6 %"}),
    ("right claim, 1.3x", CLEAR, claims_right, {3: ">= 70 %", 8: ">= 99 %"}),
    ("right claim, 1.13x", SLIGHT, claims_right, {3: ">= 20 %", 8: ">= 90 %"}),
    ("interval covers the truth, 1.13x", SLIGHT, covers, {3: ">= 93 %", 8: ">= 93 %"}),
    ('"within 1.25x" at truth 1.0', NONE, within_margin, {3: ">= 80 %", 8: ">= 98 %"}),
    ('"within 1.25x" at truth 1.25', LIMIT, within_margin, {3: "<= 6 %", 8: "<= 6 %"}),
    (
        "interaction 2x against 1/2x named",
        CROSSED,
        lambda verdict, truth: names_interaction(verdict),
        {3: ">= 90 %", 8: ">= 99 %"},
    ),
)


def measure(sweeps: int, seed: int = 0, seeds: Sequence[int] = (3, 8)) -> dict[str, dict[int, float]]:
    """The share of simulated sweeps with each of the properties of `LINES`, by number of seeds.

    Args:
        sweeps: number of simulated sweeps of each truth.
        seed: of the simulation.
        seeds: numbers of seeds of a sweep.
    """
    found: dict[tuple[Truth, int], list[Verdict]] = {}
    for truth in dict.fromkeys(line[1] for line in LINES):
        for n in seeds:
            draw = random.Random(f"{seed} {truth} {n}")
            found[truth, n] = [verdict_on(truth, n, draw) for _ in range(sweeps)]
    return {
        name: {n: fmean(holds(verdict, truth) for verdict in found[truth, n]) for n in seeds}
        for name, truth, holds, _ in LINES
    }


def document(sweeps: int, seed: int, rows: Mapping[str, Mapping[int, float]]) -> str:
    """The table as ``docs/calibration.md``."""
    seeds = [*next(iter(rows.values()))]
    wanted: dict[str, Mapping[int, str]] = {name: targets for name, _, _, targets in LINES}

    def cell(name: str, n: int) -> str:
        share = rows[name][n]
        # Simulation error: one standard deviation of a share of independent sweeps.
        error = math.sqrt(max(share * (1 - share), 0.25 / sweeps) / sweeps)
        return f"{100 * share:.1f} % ± {100 * error:.1f}" + (f" ({wanted[name][n]})" if n in wanted[name] else "")

    lines = [
        "# How often the comparison is right",
        "",
        f"Made by `make calibrate` on {date.today()}, commit {_commit()}, {platform.machine()}, Python "
        f"{platform.python_version()}, simulation seed {seed}: {sweeps} simulated sweeps a cell, written as run "
        "folders and compared as any sweep is.",
        "",
        "Each sweep compares two position schemes on the default run's curve: 360 steps, a loss that is logged every "
        f"{LOGGED} steps with {100 * NOISE:.0f} % noise in a batch, and validation every {VALIDATED} steps. The log "
        f"ratio of the steps that both schemes need has a standard deviation of {SPREAD} over seeds. The last line has "
        "two settings; where half of the runs learn, those that do not stay at the loss of the start. In brackets: "
        "what the comparison is built to reach.",
        "",
        f"| | {' | '.join(f'{n} seeds' for n in seeds)} |",
        "|---|" + "---|" * len(seeds),
        *(f"| {name} | {' | '.join(cell(name, n) for n in seeds)} |" for name in rows),
        "",
        "A claim is a verdict of *different*; it is right if the direction is right too. *Within 1.25x* is "
        "said of what is equivalent, and of a difference whose bound is below the margin.",
        "",
    ]
    return "\n".join(lines)


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m poslab.comparison.calibration", description=__doc__)
    parser.add_argument("--sweeps", type=int, default=400, help="simulated sweeps a cell")
    parser.add_argument("--seed", type=int, default=0, help="of the simulation")
    parser.add_argument("--output", type=Path, help="the file to write; default: only print")
    options: Any = parser.parse_args(arguments)
    text = document(options.sweeps, options.seed, measure(options.sweeps, options.seed))
    if options.output is not None:
        options.output.write_text(text, encoding="utf-8")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
