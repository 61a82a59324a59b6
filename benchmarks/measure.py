"""Measure times that can be compared: alternating, so that a drift of the machine's speed affects all of them alike."""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from marked import Marks

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TRAIN = str(ROOT / "train.py")


class Ended(NamedTuple):
    """A process that has ended without an error.

    Attributes:
        seconds: wall time.
        memory: peak resident memory in MiB.
        marks: the times recorded by `marked.py`, and ``started``, in seconds since the epoch.
    """

    seconds: float
    memory: float
    marks: dict[str, float]

    def phases(self) -> dict[str, float]:
        """Split the wall time of a poslab run into start-up, fit, diagnostics and shutdown, in seconds."""
        marks, diagnostics = self.marks, self.marks["diagnostics"]
        before, by_fit_end = marks["diagnostics_before"], marks["diagnostics_by_fit_end"]
        return {
            "start-up": marks["first_step"] - marks["started"] - before,
            "fit": marks["fit_end"] - marks["first_step"] - (by_fit_end - before),
            "diagnostics": diagnostics,
            "shutdown": marks["started"] + self.seconds - marks["fit_end"] - (diagnostics - by_fit_end),
        }


def process(script: str, *arguments: str) -> Ended:
    """Run a Python script in a new empty folder and wait for its end.

    Raises:
        RuntimeError: the script failed; contains the end of its output.
    """
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "output.txt", "wb+") as output:
        marks = Path(folder) / "marks.json"
        command = [sys.executable, str(HERE / "marked.py"), script, *arguments]
        started, clock = time.time(), time.perf_counter()
        child = subprocess.Popen(
            command, cwd=folder, env={**os.environ, "BENCH_MARKS": str(marks)}, stdout=output, stderr=subprocess.STDOUT
        )
        memory = 0.0
        if hasattr(os, "wait4"):
            # Resource usage of this child only; resource.getrusage would give the maximum over all children so far.
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            memory = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        else:
            child.wait()
        seconds = time.perf_counter() - clock
        if child.returncode:
            output.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed\n{output.read().decode(errors='replace')[-2000:]}")
        return Ended(seconds, memory, {**json.loads(marks.read_text(encoding="utf-8")), "started": started})


class Watched(NamedTuple):
    """Times of a run in this process, in seconds.

    Attributes:
        steps: number of optimiser steps.
        before_first_step: from the start of the run to the first step, without diagnostics.
        stepping: from the first step to the last.
        typical_step: the median from one step to the next.
        fit: from the first step to the end of ``fit``, without diagnostics.
        diagnostics: total time spent waiting for diagnostics.
        diagnostics_after_fit: the part of this time after the end of ``fit``.
    """

    steps: int
    before_first_step: float
    stepping: float
    typical_step: float
    fit: float
    diagnostics: float
    diagnostics_after_fit: float


def watched_run(*overrides: str) -> Watched:
    """Train in this process like ``python train.py OVERRIDES``."""
    import logging

    import torch
    from hydra import compose, initialize_config_dir

    from poslab.experiment.run import run

    logging.disable()
    threads = torch.get_num_threads()
    marks = _marks()
    started = time.time()
    with tempfile.TemporaryDirectory() as folder, initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        run(compose("train", overrides=list(overrides)), Path(folder) / "run")
    torch.set_num_threads(threads)
    in_fit = marks.diagnostics_by_fit_end - marks.diagnostics_before
    fit = marks.fit_end - marks.first_step
    at = marks.step_times
    return Watched(
        steps=marks.steps,
        before_first_step=marks.first_step - started - marks.diagnostics_before,
        stepping=marks.last_step - marks.first_step,
        typical_step=median([one - before for before, one in pairwise(at)]),
        fit=fit - in_fit,
        diagnostics=marks.diagnostics,
        diagnostics_after_fit=marks.diagnostics - marks.diagnostics_by_fit_end,
    )


_WATCHING: list[Marks] = []


def _marks() -> Marks:
    """Reset and return this process's marks; the first call installs the hooks that record them."""
    import torch.optim.optimizer as optimizer_module

    if not _WATCHING:
        _WATCHING.append(Marks())
        _WATCHING[0].watch_optimizers(optimizer_module)
        _WATCHING[0].watch_runs()
    Marks.__init__(_WATCHING[0])
    return _WATCHING[0]


def in_turn(measures: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list]:
    """Call the measures alternately, A B C A B C .., and return the results of each.

    With more than one repeat, an additional first turn warms up files and caches and does not count.
    """
    taken: dict[str, list] = {name: [] for name in measures}
    for turn in range(repeats + (repeats > 1)):
        for name, measure in measures.items():
            print(f"  {turn + 1}. {name}", file=sys.stderr, flush=True)
            found = measure()
            if turn or repeats == 1:
                taken[name].append(found)
    return taken


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def seconds_of(action: Callable[[], object], times: int = 1) -> float:
    """Seconds of one call, as the mean over several calls."""
    started = time.perf_counter()
    for _ in range(times):
        action()
    return (time.perf_counter() - started) / times


def machine() -> str:
    """The machine and the versions, in one line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    model = platform.processor() or platform.machine()
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    load = f", load {os.getloadavg()[0]:.1f} before" if hasattr(os, "getloadavg") else ""
    versions = ", ".join(f"{name} {version(name)}" for name in ("poslab", "torch", "lightning", "hydra-core"))
    return f"{platform.system()}, {model}, {cores} cores{load}; Python {platform.python_version()}, {versions}"
