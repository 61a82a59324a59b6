"""How much longer the whole default run takes than a bare PyTorch script that trains the same model as long.

Whole processes, imports included, one after the other in turn (A B A B ...), so that a machine whose speed drifts slows
both; the ratio of the medians is what to quote. Run it with nothing else going on: ``make bench``.
"""

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


def seconds(command: Sequence[str], cwd: str) -> float:
    """Wall seconds of a whole process.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    started = time.perf_counter()
    subprocess.run(command, cwd=cwd, check=True, capture_output=True)
    return time.perf_counter() - started


def compare(commands: dict[str, Sequence[str]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each command, interleaved, after one run of each that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as cwd:
        for turn in range(repeats + 1):
            for name, command in commands.items():
                taken = seconds(command, cwd)
                if turn:
                    times[name].append(taken)
    return times


def table(times: dict[str, list[float]], floor: str) -> str:
    """A Markdown table: median, spread, and the ratio of medians to ``floor``."""
    base = statistics.median(times[floor])
    lines = ["| what | median s | min s | max s | ratio |", "|---|---:|---:|---:|---:|"]
    for name, taken in times.items():
        median = statistics.median(taken)
        lines.append(f"| {name} | {median:.2f} | {min(taken):.2f} | {max(taken):.2f} | {median / base:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="keep the table as benchmarks/results/<date>.md")
    arguments = parser.parse_args()
    train = [sys.executable, str(HERE.parent / "train.py")]
    commands: dict[str, Sequence[str]] = {
        "bare PyTorch script": [sys.executable, str(HERE / "bare_loop.py")],
        "default run, all diagnostics": train,
        "default run, diagnostics=none": [*train, "diagnostics=none"],
    }
    versions = ", ".join(f"{name} {version(name)}" for name in ("poslab", "torch", "lightning"))
    text = "\n".join(
        [
            f"# Whole default run against a bare script, {date.today()}",
            "",
            f"Python {platform.python_version()}, {versions}; {platform.system()} {platform.machine()}; "
            f"medians of {arguments.repeats}, interleaved.",
            "",
            table(compare(commands, arguments.repeats), "bare PyTorch script"),
            "",
        ]
    )
    print(text)
    if arguments.write:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{date.today()}-default-run.md").write_text(text)


if __name__ == "__main__":
    main()
