"""Counts what one training step costs, in a process without the tests' shape checks; prints it as JSON.

Counted are things of which a machine's speed changes nothing: operators, Python calls, numbers read back. Each is the
difference of a longer and a shorter run, by the steps between them: what a run does once falls out.
"""

import json
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from support.paths import CONF, ROOT

sys.path.append(str(ROOT / "benchmarks"))

SHORT, LONG = 10, 30
LOG_EVERY = 10


class CountOperators(TorchDispatchMode):
    """Every operator that reaches a kernel, in forward, backward and optimiser; those that read a number apart."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts["operators"] += 1
        self.counts["numbers read"] += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@contextmanager
def counting_python(counts: Counter[str]) -> Iterator[None]:
    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            counts["python calls"] += 1

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


@contextmanager
def counting(owner: Any, name: str, counts: Counter[str], what: str) -> Iterator[None]:
    """Calls of one function."""
    original = getattr(owner, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        counts[what] += 1
        return original(*arguments, **options)

    setattr(owner, name, counted)
    try:
        yield
    finally:
        setattr(owner, name, original)


def per_step(run: Callable[[int], object]) -> dict[str, float]:
    """What ``run(steps)`` costs a step."""
    from poslab.runs.table import MetricsTable
    from poslab.runs.tensorboard import RunTensorBoard
    from poslab.tasks.copy import CopyTask

    totals = []
    for steps in (SHORT, LONG):
        counts: Counter[str] = Counter()
        with (
            counting(np.random, "default_rng", counts, "generators"),
            counting(CopyTask, "sample", counts, "batches"),
            counting(MetricsTable, "log_metrics", counts, "rows logged"),
            counting(RunTensorBoard, "log_metrics", counts, "points logged"),
            CountOperators(counts),
        ):
            run(steps)
        # On its own: the mode above is Python too.
        with counting_python(counts):
            run(steps)
        totals.append(counts)
    return {name: (totals[1][name] - totals[0][name]) / (LONG - SHORT) for name in totals[1]}


def train(steps: int, *overrides: str) -> None:
    """A run of this many steps in one epoch."""
    from hydra import compose, initialize_config_dir

    from poslab.experiment.run import run

    length = (f"data.steps_per_epoch={steps}", "trainer.max_epochs=1", f"trainer.log_every_n_steps={LOG_EVERY}")
    with tempfile.TemporaryDirectory() as folder, initialize_config_dir(str(CONF), version_base="1.3"):
        run(compose("train", overrides=[*length, "diagnostics=none", *overrides]), Path(folder) / "run")


def main() -> None:
    import bare_loop

    logging.disable()
    torch.set_num_threads(1)
    costs = {
        "bare": per_step(lambda steps: bare_loop.train(bare_loop.BareModel(), steps)),
        "default": per_step(train),
        "seeds=4": per_step(lambda steps: train(steps, "seeds=4")),
    }
    sys.stdout.write(json.dumps(costs, indent=1))


if __name__ == "__main__":
    main()
