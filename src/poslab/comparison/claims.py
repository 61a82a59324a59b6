"""Claims held to account: what an experiment's file says the results are, against the results that are there.

``python -m poslab.claims DIR...`` reads finished sweeps and writes the table claim / expected / measured / holds. A
claim is data in the experiment's own file (``sweep.claims``); a sweep keeps them in its folder as ``claims.json``.
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
    """One claim beside what was found.

    Attributes:
        claim: as its file has it.
        sweep: the folder it was held against.
        expected: in a few words.
        measured: likewise, with the number of jobs.
        holds: None when there is nothing to judge by.
    """

    claim: ClaimConfig
    sweep: str
    expected: str
    measured: str
    holds: bool | None


def judge(claim: ClaimConfig, jobs: Sequence[Job], sweep: str = "") -> Verdict:
    """Hold one claim against the completed jobs it is about; means are over jobs, so over seeds.

    A job without the metric (a length out of reach, say) does not speak for or against; if none has it, nothing is
    judged.
    """
    ours = _values(claim.metric, _matching(claim.where, jobs))
    expected = []
    if claim.above is not None:
        expected.append(f"above {claim.above:g}")
    if claim.below is not None:
        expected.append(f"below {claim.below:g}")
    if claim.than is not None:
        expected.append(f"more than {claim.than}" + (f" by {claim.by:g}" if claim.by else ""))
    measured = _found(ours)
    known_metrics = {name for job in jobs for name in job.metrics}
    if known_metrics and claim.metric not in known_metrics:
        measured = f"no result is called {claim.metric}{did_you_mean(claim.metric, known_metrics)}"
    known = bool(ours)
    holds = known
    if known:
        mean = fmean(ours)
        holds = (claim.above is None or mean > claim.above) and (claim.below is None or mean < claim.below)
        if claim.than is not None:
            others = {
                label: found
                for label, group in _groups(claim.than, jobs).items()
                if (found := _values(claim.metric, group))
            }
            known = bool(others)
            holds = holds and all(mean - fmean(found) > claim.by for found in others.values())
            measured += "; against " + ("; ".join(f"{label} {_found(found)}" for label, found in others.items()) or "–")
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
    """The jobs that ``where`` names, alternatives (``pos=rope|t5``) apart."""
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


def _found(values: Sequence[float]) -> str:
    """The mean, and the least and the most where they differ."""
    if not values:
        return "no result"
    spread = f" ({min(values):.3g} to {max(values):.3g})" if len(values) > 1 else ""
    return f"{fmean(values):.3g}{spread}, {count(len(values), 'job')}"


def read_claims(sweep: Path) -> list[ClaimConfig]:
    """The claims that a sweep was run for.

    Raises:
        ConfigError: there are none in the folder, or they cannot be read.
    """
    path = sweep / CLAIMS_FILE
    if not path.exists():
        raise ConfigError(f"{sweep} has no {CLAIMS_FILE}; name the folder of a sweep whose experiment has claims")
    try:
        return [ClaimConfig(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read ({' '.join(str(error).split())})") from error


def judge_sweep(sweep: Path) -> list[Verdict]:
    """Every claim of a sweep against its jobs.

    Raises:
        ConfigError: the sweep has no claims.
        ComparisonError: it has no jobs.
    """
    claims = read_claims(sweep)
    jobs = collect([sweep])
    return [judge(claim, jobs, sweep.name) for claim in claims]


def table(verdicts: Sequence[Verdict]) -> str:
    """Markdown: claim / expected / measured / holds, and how many hold."""
    words = {True: "yes", False: "**no**", None: "not judged"}
    counts = {word: sum(verdict.holds is holds for verdict in verdicts) for holds, word in words.items()}
    lines = [
        "# Claims",
        "",
        f"{len(verdicts)} claims: {counts['yes']} hold, {counts['**no**']} do not, {counts['not judged']} not judged.",
        "Measured is the mean over seeds, with the least and the most of them.",
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
    """Judge, write, and say what was found.

    Raises:
        SystemExit: with one line, exit code 1, when there is nothing to judge or the table cannot be written.
    """
    parser = argparse.ArgumentParser(prog="python -m poslab.claims", description="Hold claims against finished sweeps.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="a sweep's folder")
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"the table; {TABLE_FILE} in the first DIR")
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
