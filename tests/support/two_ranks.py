"""Runs of two processes, and that they equal a run of one."""

import csv
import re
import subprocess
from pathlib import Path

import pytest

# What could go wrong unlike in two processes: each step's loss and rate, a clipped gradient, a length drawn for each
# batch, an end within an epoch.
AS_ONE = (
    "data.steps_per_epoch=8",
    "trainer.max_steps=12",
    "trainer.log_every_n_steps=1",
    "trainer.gradient_clip_norm=0.1",
    "optimizer.warmup_steps=3",
    "optimizer.decay=cosine",
    "task.min_length=2",
    "data.val_examples=50",
    "seed=4",
)
# What Gloo says on a machine whose own name has no address, as in many a container; it then uses the loopback one.
UNRESOLVED = re.compile(r"^\[W\d+ [\d:.]+ ProcessGroupGloo\.cpp:\d+\] Warning: Unable to resolve hostname .*\n", re.M)


def rows_of(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "metrics.csv").read_text(encoding="utf-8").splitlines()))


def assert_same_curves(one: Path, other: Path, without: str = " ") -> None:
    """The same columns and rows, and each number within what another order of summing does to it."""
    rows, others = rows_of(one), rows_of(other)
    assert [row["step"] for row in rows] == [row["step"] for row in others]
    for a, b in zip(rows, others, strict=True):
        names = [name for name in a if not name.startswith(without)]
        assert set(names) == set(b)
        for name in names:
            assert (a[name] == "") == (b[name] == ""), (name, a["step"])
            assert float(a[name] or 0) == pytest.approx(float(b[name] or 0), rel=1e-3, abs=1e-5), (name, a["step"])


def assert_one_run(folder: Path, done: subprocess.CompletedProcess[str]) -> None:
    """One folder, one event stream, each line once; no rank has anything to complain of."""
    assert (done.returncode, UNRESOLVED.sub("", done.stderr)) == (0, "")
    assert len(list(folder.glob("events.out.tfevents.*"))) == 1
    assert len(list(folder.glob("*.log"))) == 1
    for said in (done.stdout, (folder / "train.log").read_text(encoding="utf-8")):
        lines = [line.split(" INFO ")[-1] for line in said.splitlines() if line.strip("┌─┐└┘ ")]
        assert len(lines) == len(set(lines)), said
    assert sum(line.startswith("epoch") for line in done.stdout.splitlines()) == 2
