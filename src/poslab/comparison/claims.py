"""Check claims: compare the results that an experiment expects with the results of its sweep.

``python -m poslab.claims DIR...`` reads finished sweeps and writes a table with the columns claim, expected, measured
and holds. An experiment lists its claims as ``sweep.claims``; a sweep stores them in its folder as ``claims.json``.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from poslab.comparison import ComparisonError, Job
from poslab.comparison.axes import Value, typed_settings
from poslab.comparison.collect import collect, without_repeats
from poslab.comparison.numbers import count
from poslab.config.rules import did_you_mean
from poslab.config.schema import ClaimConfig
from poslab.errors import ConfigError
from poslab.runs.names import CLAIMS_FILE
from poslab.system.files import write_atomically

TABLE_FILE = "claims.md"


@dataclass(frozen=True)
class Verdict:
    """One claim and its result.

    Attributes:
        claim: the claim, as in the experiment.
        sweep: name of the sweep folder.
        expected: the expectation as text.
        measured: the measured value as text, with the number of jobs.
        holds: whether the claim holds; None if no job has the metric.
    """

    claim: ClaimConfig
    sweep: str
    expected: str
    measured: str
    holds: bool | None


def judge(claim: ClaimConfig, jobs: Sequence[Job], sweep: str = "") -> Verdict:
    """Check one claim against the completed jobs that it selects, by means over these jobs (their seeds).

    Jobs without the metric, for example because a length is out of reach, are ignored. If no job has it, the claim is
    not judged.

    Raises:
        ConfigError: ``claim.than`` has more than one set of alternatives.
    """
    values = _values(claim.metric, _matching(claim.where, jobs))
    expected = []
    if claim.above is not None:
        expected.append(f"above {claim.above:g}")
    if claim.below is not None:
        expected.append(f"below {claim.below:g}")
    if claim.than is not None:
        expected.append(f"more than {claim.than}" + (f" by {claim.by:g}" if claim.by else ""))
    measured = _summary(values)
    known_metrics = {name for job in jobs for name in job.metrics}
    if known_metrics and claim.metric not in known_metrics:
        measured = f"no result is called {claim.metric}{did_you_mean(claim.metric, known_metrics)}"
    known = bool(values)
    holds = known
    if known:
        mean = fmean(values)
        holds = (claim.above is None or mean > claim.above) and (claim.below is None or mean < claim.below)
        if claim.than is not None:
            others = {
                label: found
                for label, group in _groups(claim.than, jobs).items()
                if (found := _values(claim.metric, group))
            }
            known = bool(others)
            holds = holds and all(mean - fmean(found) > claim.by for found in others.values())
            measured += "; against " + (
                "; ".join(f"{label} {_summary(found)}" for label, found in others.items()) or "–"
            )
    return Verdict(claim, sweep, ", ".join(expected), measured, holds if known else None)


def _matching(where: str, jobs: Sequence[Job]) -> list[Job]:
    """The completed jobs with these settings, each configuration once."""
    wanted = typed_settings(where.split())
    return [
        job
        for job in without_repeats(jobs)
        if all(_same(job.settings.get(key), value) for key, value in wanted.items())
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


def _values(metric: str, jobs: Sequence[Job]) -> list[float]:
    return [job.metrics[metric] for job in jobs if metric in job.metrics]


def _summary(values: Sequence[float]) -> str:
    """Mean, smallest and largest value, and number of jobs, as text."""
    if not values:
        return "no result"
    spread = f" ({min(values):.3g} to {max(values):.3g})" if len(values) > 1 else ""
    return f"{fmean(values):.3g}{spread}, {count(len(values), 'job')}"


def read_claims(sweep: Path) -> list[ClaimConfig]:
    """Read the claims in a sweep folder.

    Raises:
        ConfigError: the folder has no claims, or they cannot be read.
    """
    path = sweep / CLAIMS_FILE
    if not path.exists():
        raise ConfigError(f"{sweep} has no {CLAIMS_FILE}; name the folder of a sweep whose experiment has claims")
    try:
        return [ClaimConfig(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read ({' '.join(str(error).split())})") from error


def judge_sweep(sweep: Path) -> list[Verdict]:
    """Check every claim of a sweep against its jobs.

    Raises:
        ConfigError: the sweep has no claims, or they cannot be read.
        ComparisonError: the sweep has no jobs.
    """
    claims = read_claims(sweep)
    jobs = collect([sweep])
    return [judge(claim, jobs, sweep.name) for claim in claims]


def table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as Markdown: the number of claims that hold, and one table row per claim."""
    words = {True: "yes", False: "**no**", None: "not judged"}
    counts = {word: sum(verdict.holds is holds for verdict in verdicts) for holds, word in words.items()}
    lines = [
        "# Claims",
        "",
        f"{len(verdicts)} claims: {counts['yes']} hold, {counts['**no**']} do not, {counts['not judged']} not judged.",
        "Measured is the mean over seeds, with the smallest and the largest value.",
        "",
        "| claim | expected | measured | holds | source | sweep |",
        "|---|---|---|---|---|---|",
    ]
    for one in verdicts:
        cells = [
            one.claim.claim,
            f"{one.claim.metric} {one.expected}" + (f" where {one.claim.where}" if one.claim.where else ""),
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
        mark = {True: "holds", False: "does not hold", None: "not judged"}[one.holds]
        sys.stdout.write(f"{mark:>13}: {one.claim.claim} ({one.expected}; measured {one.measured})\n")
    sys.stdout.write(f"see it: {target}\n")
