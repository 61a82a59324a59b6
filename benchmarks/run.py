"""Measures how fast poslab is and writes a dated table to ``benchmarks/results/``: ``make bench``.

Everything is measured in turn in one session, in medians and ratios; quote those and never a single time. Have nothing
else going on meanwhile.
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
    parser.add_argument("parts", nargs="*", metavar="part", help=f"some of: {', '.join(PARTS)}; all if none")
    parser.add_argument("--repeats", type=int, help="of each part, instead of its own number")
    parser.add_argument("--full", action="store_true", help="run what is otherwise reckoned from less; half an hour")
    parser.add_argument("--output", type=Path, help="the file to write; results/<date>.md, or -<parts>.md of some")
    arguments = parser.parse_args()
    chosen = arguments.parts or list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"no part is called {', '.join(unknown)}; there are: {', '.join(PARTS)}")
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
