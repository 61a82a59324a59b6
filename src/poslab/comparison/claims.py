"""Check claims: compare the results that an experiment expects with the results of its sweep.

``python -m poslab.claims DIR...`` reads finished sweeps and writes a table with the columns claim, expected, measured
and holds. An experiment lists its claims as ``sweep.claims``; a sweep stores them in its folder as ``claims.json``.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from poslab.comparison import ComparisonError, Job
from poslab.comparison.axes import Value, typed_settings
from poslab.comparison.collect import collect, distinct
from poslab.comparison.levels import seed_of
from poslab.comparison.numbers import count
from poslab.comparison.statistics import Estimate, welch
from poslab.config.rules import did_you_mean
from poslab.config.schema import ClaimConfig
from poslab.errors import ConfigError
from poslab.runs.names import CLAIMS_FILE
from poslab.system.files import write_atomically
from poslab.system.reading import read_json
from poslab.system.startup import print_anything

TABLE_FILE = "claims.md"


@dataclass(frozen=True)
class Judgement:
    """One claim and its result.

    Attributes:
        claim: the claim, as in the experiment.
        sweep: name of the sweep folder.
        expected: the expectation as text.
        measured: the measured value as text, with its bound and the number of seeds.
        holds: whether the bound passes the expectation; None if no job has the metric.
    """

    claim: ClaimConfig
    sweep: str
    expected: str
    measured: str
    holds: bool | None


SHARES = ("exact_match", "accuracy")
"""Ends of the names of metrics between 0 and 1."""


class _Measured(NamedTuple):
    """A metric of the jobs that a claim selects.

    Attributes:
        by_seed: the mean over the jobs of each seed; a diverged job counts as the value that is worst for the claim.
        jobs: number of jobs with the metric.
        diverged: number of jobs that diverged.
    """

    by_seed: dict[Value | None, float]
    jobs: int
    diverged: int

    @property
    def mean(self) -> float:
        return fmean(self.by_seed.values())


def judge(claim: ClaimConfig, jobs: Sequence[Job], sweep: str = "") -> Judgement:
    """Check one claim against the jobs that it selects.

    A claim holds only if the one-sided 95 % bound of the mean over seeds passes the expectation, so one seed shows
    nothing. A difference to other jobs is taken seed by seed where both have at least two seeds in common. A job that
    diverged counts as the worst score; with a metric that is no share, the claim then does not hold. Jobs without the
    metric, for example because a length is out of reach, are ignored; if no job has it, the claim is not judged.

    Raises:
        ConfigError: ``claim.than`` has more than one set of alternatives.
    """
    known_metrics = {name for job in jobs for name in job.metrics}
    found = _measure(claim.metric, _matching(claim.where, jobs), 1.0 if claim.below is not None else 0.0)
    expected = [f"above {claim.above:g}"] if claim.above is not None else []
    expected += [f"below {claim.below:g}"] if claim.below is not None else []
    if claim.than is not None:
        expected.append(f"more than {claim.than}" + (f" by {claim.by:g}" if claim.by else ""))
    measured, passed = [_text(found)], []
    if known_metrics and claim.metric not in known_metrics:
        measured = [f"no result is called {claim.metric}{did_you_mean(claim.metric, known_metrics)}"]
    if found.by_seed and (claim.above is not None or claim.below is not None):
        low, high = _bounds([*found.by_seed.values()])
        passed += [low > claim.above] if claim.above is not None else []
        passed += [high < claim.below] if claim.below is not None else []
        measured += [_bound("at least", low)] if claim.above is not None else []
        measured += [_bound("at most", high)] if claim.below is not None else []
    if claim.than is not None:
        others = {label: _measure(claim.metric, group, 1.0) for label, group in _groups(claim.than, jobs).items()}
        for label, other in others.items():
            if found.by_seed and other.by_seed:
                low = _lowest_difference(found, other)
                passed.append(low > claim.by)
                measured.append(f"more than {label} ({_text(other)}), {_bound('by at least', low)}")
    holds = all(passed) if passed else None
    if found.diverged and claim.metric in known_metrics and (not found.jobs or not claim.metric.endswith(SHARES)):
        # A loss has no worst value, and of jobs that all diverged only that is known.
        holds = False
    return Judgement(claim, sweep, ", ".join(expected), "; ".join(measured), holds)


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """The one-sided 95 % bounds of the mean, from below and from above; infinite for one value."""
    if len(values) < 2:
        return -math.inf, math.inf
    estimate = Estimate.of_mean(values)
    return estimate.interval(0.9)


def _lowest_difference(one: _Measured, two: _Measured) -> float:
    """The one-sided 95 % bound from below of the difference of two means."""
    shared = one.by_seed.keys() & two.by_seed.keys()
    if len(shared) > 1:
        return _bounds([one.by_seed[seed] - two.by_seed[seed] for seed in shared])[0]
    sides = [*one.by_seed.values()], [*two.by_seed.values()]
    if min(map(len, sides)) < 2:
        return -math.inf
    estimate = welch(*sides)
    return one.mean - two.mean if estimate is None else estimate.interval(0.9)[0]


def _bound(words: str, value: float) -> str:
    return f"{words} {value:.3g}" if math.isfinite(value) else "no bound with one seed"


def _matching(where: str, jobs: Sequence[Job]) -> list[Job]:
    """The completed and diverged jobs with these settings, each configuration once."""
    wanted = typed_settings(where.split())
    return [
        job
        for job in distinct(jobs)
        if job.judged and all(_same(job.settings.get(key), value) for key, value in wanted.items())
    ]


def _same(found: Value | None, wanted: Value) -> bool:
    return str(found) == str(wanted) or (isinstance(found, (int, float)) and found == wanted)


def _groups(where: str, jobs: Sequence[Job]) -> dict[str, list[Job]]:
    """The jobs that ``where`` selects; alternatives such as ``pos=rope|t5`` give one group each."""
    groups: dict[str, list[Job]] = {}
    fixed = [word for word in where.split() if "|" not in word]
    choices = [word for word in where.split() if "|" in word]
    if len(choices) > 1:
        raise ConfigError(f"sweep.claims: than='{where}' has more than one set of alternatives; use one")
    if not choices:
        return {where: _matching(where, jobs)}
    key, _, values = choices[0].partition("=")
    for value in values.split("|"):
        words = " ".join([*fixed, f"{key}={value}"])
        groups[words] = _matching(words, jobs)
    return groups


def _measure(metric: str, jobs: Sequence[Job], worst: float) -> _Measured:
    rows: dict[Value | None, list[float]] = {}
    scored = [job for job in jobs if job.completed and metric in job.metrics]
    diverged = [job for job in jobs if not job.completed]
    for job in scored:
        rows.setdefault(seed_of(job), []).append(job.metrics[metric])
    if scored:
        for job in diverged:
            rows.setdefault(seed_of(job), []).append(worst)
    return _Measured({seed: fmean(values) for seed, values in rows.items()}, len(scored), len(diverged))


def _text(found: _Measured) -> str:
    """Mean, smallest and largest value, and number of seeds, as text."""
    diverged = f", {found.diverged} diverged" if found.diverged else ""
    if not found.by_seed:
        return f"no result{diverged}"
    values = [*found.by_seed.values()]
    spread = f" ({min(values):.3g} to {max(values):.3g})" if len(values) > 1 else ""
    return f"{fmean(values):.3g}{spread}, {count(len(values), 'seed')}{diverged}"


def read_claims(sweep: Path) -> list[ClaimConfig]:
    """Read the claims in a sweep folder.

    Raises:
        ConfigError: the folder has no claims, or they cannot be read.
    """
    path = sweep / CLAIMS_FILE
    if not path.exists():
        raise ConfigError(f"{sweep} has no {CLAIMS_FILE}; name the folder of a sweep whose experiment has claims")
    try:
        return [ClaimConfig(**entry) for entry in read_json(path)]
    except (AttributeError, OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read ({' '.join(str(error).split())})") from error


def judge_sweep(sweep: Path) -> list[Judgement]:
    """Check every claim of a sweep against its jobs.

    Raises:
        ConfigError: the sweep has no claims, or they cannot be read.
        ComparisonError: the sweep has no jobs.
    """
    claims = read_claims(sweep)
    jobs = collect([sweep])
    return [judge(claim, jobs, sweep.name) for claim in claims]


def table(verdicts: Sequence[Judgement]) -> str:
    """The verdicts as Markdown: the number of claims that hold, and one table row per claim."""
    words = {True: "yes", False: "**not shown**", None: "not judged"}
    counts = {word: sum(verdict.holds is holds for verdict in verdicts) for holds, word in words.items()}
    lines = [
        "# Claims",
        "",
        f"{len(verdicts)} claims: {counts['yes']} hold, {counts['**not shown**']} are not shown, "
        f"{counts['not judged']} are not judged.",
        "Measured is the mean over seeds, with the smallest and the largest seed. A claim holds if the one-sided 95 % "
        "bound of the mean passes; a job that diverged counts as the worst score.",
        "",
        "| claim | expected | measured | holds | source | sweep |",
        "|---|---|---|---|---|---|",
    ]
    for one in verdicts:
        cells = [
            one.claim.claim,
            f"{one.claim.metric} {one.expected}" + (f" with {one.claim.where}" if one.claim.where else ""),
            one.measured,
            words[one.holds],
            one.claim.source,
            one.sweep,
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def main(arguments: list[str] | None = None) -> None:
    """Check the claims of the given sweeps, write the table and print the verdicts.

    Raises:
        SystemExit: with a one-line message and exit code 1, if a sweep has no claims or no jobs, or the table cannot be
            written.
    """
    parser = argparse.ArgumentParser(
        prog="python -m poslab.claims", description="Check claims against finished sweeps."
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="a sweep folder")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help=f"where to write the table; default: {TABLE_FILE} in the first DIR"
    )
    print_anything()
    options = parser.parse_args(arguments)
    target = options.output or options.folders[0] / TABLE_FILE
    try:
        verdicts = [verdict for folder in options.folders for verdict in judge_sweep(folder)]
        write_atomically(target, table(verdicts).encode())
    except (ConfigError, ComparisonError) as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: cannot write {target} ({error.strerror or error}); choose another place with --output")
    for one in verdicts:
        mark = {True: "holds", False: "not shown", None: "not judged"}[one.holds]
        sys.stdout.write(f"{mark:>13}: {one.claim.claim} ({one.expected}; measured {one.measured})\n")
    sys.stdout.write(f"see it: {target}\n")
