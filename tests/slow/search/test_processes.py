"""Searches of real jobs: killed, stopped by Ctrl-C, and with trials that are pruned."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.commands import start
from support.paths import ROOT

pytest.importorskip("optuna", reason="the extra [optuna] is not installed")

from poslab.sweeps.search.pruning import PRUNING_FILE
from support.played_searches import OPTUNA, QUICK, RATE, Console


def search_of(cwd: Path) -> tuple[Path, dict[str, Any]]:
    (folder,) = (cwd / "outputs/sweeps").iterdir()
    return folder, json.loads((folder / "search.json").read_text())


def started(cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    """A search that runs while the test reads what it prints."""
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.process
def test_a_killed_search_goes_on_with_its_count(tmp_path: Path) -> None:
    """Field case S3, with ``kill -9`` in the middle of a trial's training."""
    arguments = (
        *OPTUNA,
        RATE,
        "hydra.sweeper.n_trials=3",
        "data.val_examples=32",
        "diagnostics=none",
        "trainer.max_steps=240",
        "data.steps_per_epoch=40",
    )
    child = started(tmp_path, *arguments)
    lines = []
    assert child.stdout is not None
    for line in child.stdout:
        lines.append(line)
        if line.startswith("epoch  3") and any(line.startswith("trial  0") for line in lines):
            os.kill(child.pid, signal.SIGKILL)
            break
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL, "".join(lines)
    folder, found = search_of(tmp_path)
    assert found["counts"] == {"completed": 1}
    before = {path: path.read_bytes() for path in folder.glob("*/result.json")}
    (running,) = (path for path, content in before.items() if json.loads(content)["status"] == "interrupted")

    done = start(*arguments, "sweep.resume=latest", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3 trials, 1 done before" in done.stdout
    assert "resume from" in done.stdout
    folder, found = search_of(tmp_path)
    assert found["counts"] == {"completed": 3}
    after = {path: path.read_bytes() for path in folder.glob("*/result.json")}
    assert len(after) == 3
    assert all(after[path] == content for path, content in before.items() if path != running)
    assert json.loads(after[running])["status"] == "completed"


@pytest.mark.process
def test_ctrl_c_stops_the_search(tmp_path: Path) -> None:
    arguments = (
        *OPTUNA,
        RATE,
        "hydra.sweeper.n_trials=50",
        "data.val_examples=32",
        "diagnostics=none",
        "trainer.max_steps=4000",
        "data.steps_per_epoch=20",
    )
    child = started(tmp_path, *arguments)
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("epoch  2"):
            child.send_signal(signal.SIGINT)
            break
    rest = child.stdout.read()
    child.stdout.close()
    assert child.wait() == 130
    assert "Traceback" not in rest
    folder, found = search_of(tmp_path)
    assert found["counts"] == {"running": 1}
    assert json.loads(next(folder.glob("*/result.json")).read_text())["status"] == "interrupted"


PRUNED = (
    "optimizer.lr=0.01,1e-6,1e9",
    "seed=range(0,10)",
    "hydra.sweeper.sampler=random",
    "hydra.sweeper.pruner=median",
    "hydra.sweeper.pruner_options={n_startup_trials:1}",
    "hydra.sweeper.n_trials=7",
    "data.val_examples=32",
    "data.steps_per_epoch=20",
    "trainer.max_steps=40",
    "diagnostics=none",
)


@pytest.mark.process
@pytest.mark.parametrize(
    ("goal", "launcher"),
    [
        ("{metric:val/loss,direction:minimize}", ()),
        (
            "{metric:val/accuracy,direction:maximize}",
            ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweeper.n_jobs=2"),
        ),
    ],
    ids=["in this process", "in others"],
)
def test_real_jobs_and_the_end_of_those_without_hope(tmp_path: Path, goal: str, launcher: tuple[str, ...]) -> None:
    if launcher:
        pytest.importorskip("joblib", reason="the extra [joblib] is not installed")
    done = start(*OPTUNA, *PRUNED, f"hydra.sweeper.objectives=[{goal}]", *launcher, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    folder, found = search_of(tmp_path)
    assert found["counts"].keys() == {"completed", "pruned", "failed"}, done.stdout
    assert sum(found["counts"].values()) == 7
    for trial in found["trials"]:
        result = json.loads((folder / trial["folder"] / "result.json").read_text())
        if trial["state"] == "completed":
            (metric,) = trial["values"]
            assert trial["values"][metric] == result["metrics"][metric]
        elif trial["state"] == "failed":
            assert result["status"] == "diverged"
            assert trial["settings"]["optimizer.lr"] == 1e9
        else:
            assert result["status"] == "interrupted"
            assert "pruned at step " in result["error"]
            assert trial["reason"] == result["error"]
            assert trial["settings"]["optimizer.lr"] < 1
    # One that cannot learn is behind those that do.
    assert [trial for trial in found["trials"] if trial["settings"]["optimizer.lr"] == 1e-6][-1]["state"] == "pruned"
    assert found["best"][0]["settings"]["optimizer.lr"] == 0.01
    assert (folder / PRUNING_FILE).exists()
    assert (folder / "comparison.csv").exists()


def test_several_objectives_are_not_pruned(console: Console) -> None:
    goals = "hydra.sweeper.objectives=[{metric:val/loss,direction:minimize},{metric:seconds,direction:minimize}]"
    assert console(RATE, goals, "hydra.sweeper.pruner=median", *QUICK) == 1
    assert "use pruner=none, or one objective" in console.err
