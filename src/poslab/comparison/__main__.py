"""``python -m poslab.comparison DIR...``: compare the runs in these folders."""

import argparse
import math
import sys
from pathlib import Path

from poslab.comparison.writing import PAGE_FILE, Comparison, write_comparison
from poslab.errors import ComparisonError, ConfigError
from poslab.system.startup import print_anything


def main(arguments: list[str] | None = None) -> None:
    """Compare the runs in the given folders, write the comparison and print its statements.

    Raises:
        SystemExit: with a one-line message and exit code 1, if there is nothing to compare or the comparison cannot be
            written.
    """
    parser = argparse.ArgumentParser(
        prog="python -m poslab.comparison", description="Compare the runs in one or more folders."
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="a sweep folder or a run folder")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where to write; default: the first DIR")
    parser.add_argument(
        "--margin", type=float, help="two levels within this factor are equivalent; default: the sweep's"
    )
    parser.add_argument(
        "--tune", action="append", metavar="KEY", help="compare each level at its own best value of this axis"
    )
    parser.add_argument("--target", type=float, metavar="RATIO", help="say how many seeds would show such a ratio")
    print_anything()
    options = parser.parse_args(arguments)
    target = options.output or options.folders[0]
    try:
        if options.target is not None and not (0 < options.target < math.inf and options.target != 1):
            raise ConfigError(f"--target {options.target:g} must be a ratio above 0 other than 1, such as 1.2")
        comparison = write_comparison(options.folders, target, options.margin, options.tune, options.target)
    except (ComparisonError, ConfigError) as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: cannot write to {target} ({error.strerror or error}); choose another folder with --output")
    sys.stdout.write(summary(comparison, target) + "\n")


def summary(comparison: Comparison, target: Path) -> str:
    """Text with the number of jobs by status, the statements, and the path of the page."""
    jobs = ", ".join(f"{count} {status}" for status, count in comparison.counts.items())
    lines = [f"{len(comparison.jobs)} jobs: {jobs}", *(f"- {each.text}" for each in comparison.statements)]
    return "\n".join([*lines, f"see it: {target / PAGE_FILE}"])


if __name__ == "__main__":
    main()
