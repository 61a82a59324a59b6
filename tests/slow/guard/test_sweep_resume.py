"""Everything that can go wrong in one sweep, at once; then the sweep goes on and nobody can tell afterwards."""

import csv
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from poslab.comparison import write_comparison
from support.child_patches import WHEN_IT_TRAINS
from support.commands import only_sweep, start
from support.launching import needs

pytestmark = pytest.mark.process

# Three jobs that diverge, one that completes, one that fails and, last, one that is killed; six that cannot exist.
GRID = ("-m", "optimizer.lr=1e9,0.005", "model.n_heads=4,5", "seed=1,3,2")
JOB = ("data.steps_per_epoch=10", "trainer.max_epochs=6", "data.val_examples=16", "diagnostics=none", "logger=none")
FAILS, KILLED = 3, 2

# In every process of a disturbed sweep. A job is killed only after it has saved a checkpoint; one that goes on counts
# anew, so that a second try is killed as well.
DISTURBANCE = (
    """
import os
import signal

def patch(module):
    import torch
    token_loss = module.token_loss
    calls = []
    def disturbed(*arguments):
        if not calls or calls[-1] != torch.initial_seed():
            calls.clear()
        calls.append(torch.initial_seed())
        if len(calls) == 15 and calls[-1] == 3:
            raise RuntimeError("the disk is gone")
        if len(calls) == 15 and calls[-1] == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return token_loss(*arguments)
    module.token_loss = disturbed
"""
    + WHEN_IT_TRAINS
)


def results(sweep: Path) -> dict[str, dict]:
    return {path.parent.name: json.loads(path.read_text()) for path in sweep.glob("*/result.json")}


def table(folder: Path) -> list[dict[str, str]]:
    """The rows of ``comparison.csv`` without what depends on the clock."""
    with open(folder / "comparison.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(row.pop("wall_seconds") is not None for row in rows)
    return rows


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    cwd = tmp_path_factory.mktemp("undisturbed")
    ended = start(*GRID, *JOB, cwd=cwd)
    assert ended.returncode == 1, "three jobs diverged"
    assert "sweep done: 3 diverged, 3 completed, 6 invalid" in ended.stdout, ended.stdout + ended.stderr
    return table(only_sweep(cwd))


@pytest.fixture
def sweep(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``sweep(*more, disturbed=True)``: the grid, in the test's folder."""
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(DISTURBANCE)
    path = os.pathsep.join(filter(None, [str(hook), os.environ.get("PYTHONPATH")]))

    def run(*more: str, disturbed: bool = False) -> subprocess.CompletedProcess[str]:
        return start(*GRID, *JOB, *more, cwd=tmp_path, **({"PYTHONPATH": path} if disturbed else {}))

    return run


# Under the basic launcher the kill ends the sweep's own process, under joblib a worker.
@pytest.mark.parametrize(
    ("launcher", "code"), [("basic", -signal.SIGKILL), pytest.param("joblib", 1, marks=needs("joblib"))]
)
def test_a_disturbed_sweep_goes_on_to_the_table_of_an_undisturbed_one(
    launcher: str,
    code: int,
    sweep: Callable[..., subprocess.CompletedProcess[str]],
    undisturbed: list[dict[str, str]],
    tmp_path: Path,
) -> None:
    ended = sweep(f"hydra/launcher={launcher}", disturbed=True)
    assert ended.returncode == code, ended.stdout + ended.stderr
    folder = only_sweep(tmp_path)
    if launcher == "basic":
        # There was nobody left to write it.
        write_comparison([folder], folder)
    statuses = Counter(row["status"] for row in table(folder))
    assert statuses == {"completed": 1, "failed": 1, "diverged": 3, "interrupted": 1, "invalid": 6}
    assert "Traceback" not in ended.stdout + ended.stderr
    before = results(folder)
    (failed,) = [name for name, result in before.items() if result["status"] == "failed"]
    (killed,) = [name for name, result in before.items() if result["status"] == "interrupted"]
    assert (before[failed]["seed"], before[killed]["seed"]) == (FAILS, KILLED)
    finished = {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for name in before.keys() - {failed, killed}
        for path in sorted((folder / name).rglob("*"))
        if path.is_file()
    }

    ended = sweep(f"hydra/launcher={launcher}", "sweep.resume=latest")
    assert ended.returncode == 1, "three jobs are still diverged"
    assert "6 jobs, 4 done before" in ended.stdout
    assert only_sweep(tmp_path) == folder
    after = results(folder)
    assert Counter(result["status"] for result in after.values()) == {"completed": 3, "diverged": 3}
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in finished} == finished, "these did not run"
    assert "resume from last.ckpt, step" in (folder / killed / "train.log").read_text(), "this one went on"
    assert "resume from" not in (folder / failed / "train.log").read_text(), "this one began again"
    assert [path.name for path in (folder / "superseded").iterdir()] == [f"{failed}-1"]
    assert table(folder) == undisturbed
