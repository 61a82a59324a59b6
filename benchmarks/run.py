"""Measure the speed of poslab and write a dated table to ``benchmarks/results/``: ``make bench``.

The alternatives are measured alternately in one session. Quote medians and ratios, never a single time. Run nothing
else on the machine meanwhile.
"""

import argparse
import importlib
import sys
import time
from datetime import date
from pathlib import Path

from measure import HERE, machine

RESULTS = HERE / "results"

PARTS = ("start", "fit", "seeds", "attention", "generation", "compile")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"some of: {', '.join(PARTS)}; default: all")
    parser.add_argument("--repeats", type=int, help="number of repeats of each part; default: the part's own number")
    parser.add_argument(
        "--full", action="store_true", help="measure also what is otherwise estimated from shorter runs; half an hour"
    )
    parser.add_argument("--output", type=Path, help="the file to write; default: results/<date>[-<parts>].md")
    arguments = parser.parse_args()
    chosen = arguments.parts or list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"unknown part {', '.join(unknown)}; the parts are: {', '.join(PARTS)}")
    about, texts = machine(), []
    for name in chosen:
        part = importlib.import_module(f"parts.{name}")
        repeats = arguments.repeats or part.REPEATS
        print(name, file=sys.stderr)
        started = time.perf_counter()
        texts.append(part.measure(repeats, arguments.full))
        texts.append(f"*{repeats} repeats, {time.perf_counter() - started:.0f} s.*")
    text = "\n\n".join([f"# Benchmarks, {date.today()}", f"{about}. Medians, measured in turn.", *texts]) + "\n"
    name = "-".join([str(date.today()), *arguments.parts])
    output = arguments.output or RESULTS / f"{name}.md"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    print(text)
    print(f"written to {output}", file=sys.stderr)


if __name__ == "__main__":
    main()
