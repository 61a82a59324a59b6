"""Sweeps under every launcher: jobs that fail, die or are stopped, and what the console says."""

import csv
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from poslab import launchers
from poslab.system.threads import available_cores
from support.commands import only_sweep, start
from support.launching import HOOK, PARALLEL, QUICK, Swept, by_seed, needs, results
from support.processes import processes_of, wait_for
from support.runs import train


@pytest.fixture
def hook(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a sweep whose jobs do as `HOOK` says."""
    folder = tmp_path_factory.mktemp("hook")
    (folder / "sitecustomize.py").write_text(HOOK)
    return {"PYTHONPATH": str(folder)}


@pytest.mark.process
@pytest.mark.parametrize("launcher", ["basic", *PARALLEL])
def test_a_job_that_fails_or_diverges_does_so_alone(launcher: str, swept: Callable[[str], Swept]):
    cwd, ended = swept(launcher)
    assert ended.returncode == 1
    jobs = by_seed(cwd)
    assert {seed: result["status"] for seed, result in jobs.items()} == {
        1: "completed",
        2: "completed",
        3: "failed",
        4: "diverged",
    }
    assert jobs[3]["error"] == "Awkward: the disk and the network"
    assert "sweep done: 2 completed, 1 failed, 1 diverged" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr
    logs = {path.parent.name: path.read_text() for path in only_sweep(cwd).glob("*/train.log")}
    assert len(logs) == 4, "each job says in its own file what it did"
    (with_traceback,) = [name for name, log in logs.items() if "in hooked" in log and "Awkward: the disk" in log]
    assert results(cwd)[with_traceback]["seed"] == 3
    with open(only_sweep(cwd) / "comparison.csv", newline="") as file:
        assert {row["job"] for row in csv.DictReader(file)} == set(logs)


@pytest.mark.process
@pytest.mark.parametrize("launcher", PARALLEL)
def test_pictures_are_drawn_under_every_launcher(launcher: str, swept: Callable[[str], Swept]):
    cwd, _ = swept(launcher)
    for name, result in results(cwd).items():
        if result["status"] == "completed":
            assert (only_sweep(cwd) / name / "figures" / "positions_table.png").stat().st_size > 0


@pytest.mark.process
@pytest.mark.parametrize("launcher", PARALLEL)
def test_the_console_says_who_works_and_how_each_job_ended(launcher: str, swept: Callable[[str], Swept]):
    cwd, ended = swept(launcher)
    cores = available_cores()
    workers = {"ray": f"{cores} on 1 node"}.get(launcher, str(cores))
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("start  a sweep: ")
    assert lines[1].endswith(f": 4 jobs, launcher {launcher}, workers {workers}")
    assert sorted(re.findall(r"\((\d) of 4\)", ended.stdout)) == ["1", "2", "3", "4"]
    for name, result in results(cwd).items():
        (line,) = [line for line in lines if name in line and " of 4)" in line]
        assert line.startswith(result["status"])
    assert not any(line.startswith(("run ", "epoch")) for line in lines), "the lines of several jobs are no use mixed"


@pytest.mark.process
@needs("joblib")
def test_a_job_whose_process_dies_is_tried_once_more_and_takes_no_other_with_it(hook: dict[str, str], tmp_path: Path):
    """Seed 5 kills its process whenever it runs, as one that needs too much memory does."""
    ended = start("-m", "seed=1,5,2", *QUICK, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", cwd=tmp_path, **hook)
    assert ended.returncode == 1
    assert {seed: result["status"] for seed, result in by_seed(tmp_path).items()} == {
        1: "completed",
        2: "completed",
        5: "interrupted",
    }
    assert "each is tried once more, alone" in ended.stdout
    assert "sweep done: 2 completed, 1 interrupted" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr
    for seed in (1, 2):
        alone = train(tmp_path / f"alone{seed}", f"seed={seed}", *QUICK)
        (found,) = only_sweep(tmp_path).glob(f"seed{seed}-*/metrics.csv")
        assert found.read_bytes() == (alone / "metrics.csv").read_bytes()


LONG = ("seed=1,2,3", "trainer.max_epochs=2000")


@pytest.mark.process
@pytest.mark.parametrize("launcher", PARALLEL)
def test_ctrl_c_stops_the_sweep_and_leaves_nobody_behind(
    launcher: str, begin: Callable[..., subprocess.Popen[str]], tmp_path: Path
):
    child = begin(*LONG, f"hydra/launcher={launcher}", under_way=2)
    # As a terminal does it: to all of them.
    os.killpg(child.pid, signal.SIGINT)
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert "Traceback" not in said
    assert {seed: result["status"] for seed, result in by_seed(tmp_path).items()} == {
        1: "interrupted",
        2: "interrupted",
    }
    assert all(result["metrics"] for result in results(tmp_path).values()), "they had the time to say what they knew"
    assert "sweep done: 2 interrupted, 1 not started" in said
    assert wait_for(lambda: not processes_of(child.pid), 10), processes_of(child.pid)


@pytest.mark.process
@needs("joblib")
def test_the_jobs_of_a_sweep_that_was_killed_end_by_themselves(begin: Callable[..., subprocess.Popen[str]]):
    child = begin(*LONG, "hydra/launcher=joblib", "hydra.launcher.n_jobs=1", under_way=1)
    child.kill()
    assert wait_for(lambda: not processes_of(child.pid), 20), processes_of(child.pid)


def test_a_process_that_has_ended_is_not_alive():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert launchers.local.is_alive(child.pid)
    child.kill()
    # Nobody has asked how it ended: its number is still taken.
    assert wait_for(lambda: not launchers.local.is_alive(child.pid), 10)
    child.communicate()
    assert not launchers.local.is_alive(child.pid)
