"""Measure ``compile=true``: the time of a step, the time of compiling, and when compiling pays off."""

from functools import partial

import torch
from measure import Watched, in_turn, median, watched_run
from tables import table

from parts.fit import LARGE

REPEATS = 3

JOBS: dict[str, tuple[int, tuple[str, ...]]] = {
    "default": (360, ()),
    "lengths from 2 to 6": (360, ("task.min_length=2",)),
    "seeds=16": (120, ("seeds=16",)),
    "D 128, T 256, 6 layers": (12, (*LARGE, "data.val_examples=16")),
}


def run(steps: int, overrides: tuple[str, ...], compiled: bool) -> Watched:
    torch.compiler.reset()
    return watched_run(
        *overrides,
        f"data.steps_per_epoch={steps}",
        f"compile={str(compiled).lower()}",
        "trainer.max_epochs=1",
        "diagnostics=none",
        "logger=none",
    )


def measure(repeats: int, full: bool) -> str:
    rows = []
    for name, (steps, overrides) in JOBS.items():
        ways = {str(compiled): partial(run, steps, overrides, compiled) for compiled in (False, True)}
        found: dict[str, list[Watched]] = in_turn(ways, repeats)
        plain, fast = (1000 * median([one.typical_step for one in found[way]]) for way in ("False", "True"))
        # Time outside of typical steps. torch compiles before the first step, and again for a second sequence length.
        extra = [one.before_first_step + one.stepping - one.typical_step * (one.steps - 1) for one in found["True"]]
        usual = [one.before_first_step + one.stepping - one.typical_step * (one.steps - 1) for one in found["False"]]
        wait = median(extra) - median(usual)
        pays = f"{1000 * wait / (plain - fast):.0f}" if fast < plain else "never"
        rows.append((name, plain, fast, plain / fast, wait, pays))
    return "\n\n".join(
        [
            "## compile=true",
            "The median step in ms; the time of compiling (with torch's cache on disk, after the first time); and the "
            "number of steps after which compiling pays off.",
            table(("job", "not compiled", "compiled", "times faster", "compiling, s", "pays off after"), rows),
        ]
    )
