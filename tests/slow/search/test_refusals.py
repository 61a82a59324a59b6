"""What a search refuses in one line, and what it does not wait for."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.commands import start, typed
from support.paths import ROOT

pytest.importorskip("optuna", reason="the extra [optuna] is not installed")

from support.played_searches import OPTUNA, QUICK, RATE, Console


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            (RATE, "hydra.sweeper.objectives=[{metric:val/acuracy,direction:maximize}]"),
            "no job has a metric 'val/acuracy' to maximize; did you mean 'val/accuracy'? There are: best/val/",
        ),
        ((RATE, "hydra.sweeper.objectives=[{metric:val/accuracy,direction:up}]"), "choose one of minimize, maximize"),
        ((RATE, "hydra.sweeper.objectives=[]"), "objectives is empty"),
        ((RATE, "hydra.sweeper.n_trials=0"), "hydra.sweeper.n_trials=0 must be at least 1"),
        ((RATE, "hydra.sweeper.sampler=tpa"), "hydra.sweeper.sampler=tpa is unknown; choose one of tpe, random, grid"),
        ((RATE, "hydra.sweeper.sampler=grid"), "grid cannot list the values of optimizer.lr=interval"),
        ((RATE, "hydra.sweeper.sampler_options={n_start:3}"), "unexpected keyword argument 'n_start'"),
        ((RATE, "hydra.sweeper.pruner=median", "hydra.sweeper.pruner_options={x:3}"), "keyword argument 'x'"),
        ((RATE, "hydra.sweeper.storage=trials.db"), "storage=trials.db is not a database; use sqlite:///FILE"),
        ((RATE, "hydra.sweeper.storage=sqlite:///no/such/place.db"), "cannot be opened"),
        (("optimizer.lrr=interval(0.1,1)",), "unknown key 'optimizer.lrr'; did you mean 'optimizer.lr'?"),
        (("model.n_heads=3,5",), "none of 2 combinations tried can be run"),
        (("model.n_heads=3",), "has nothing to search"),
        ((RATE, "sweep.resume=latest"), "there is no sweep in"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(console: Console, arguments: tuple[str, ...], says: str) -> None:
    assert console(*arguments, *QUICK) == 1
    error = console.err
    assert says in error
    assert error.count("\n") == 1
    assert console.launchers[-1].batches == []
    assert not (console.cwd / "outputs").exists()


@pytest.mark.process
def test_without_optuna_one_line_says_how_to_get_it(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "optuna.py").write_text("raise ModuleNotFoundError(\"No module named 'optuna'\", name='optuna')\n")
    path = os.pathsep.join([str(missing), os.environ.get("PYTHONPATH", "")])
    done = start(*OPTUNA, RATE, *QUICK, cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 1
    assert done.stderr == "error: hydra/sweeper=optuna needs optuna: pip install 'poslab[optuna]'\n"
    assert not (tmp_path / "outputs").exists()


def test_several_trials_at_a_time_need_a_launcher_that_runs_them(tmp_path: Path) -> None:
    said = typed(tmp_path, *OPTUNA, RATE, "hydra.sweeper.n_jobs=2", *QUICK)
    assert said == (
        "error: hydra.sweeper.n_jobs=2 starts 2 trials at a time, and hydra/launcher=basic runs one after another; "
        "add hydra/launcher=joblib"
    )


def test_a_search_over_experiments_with_grids_of_their_own_is_refused(tmp_path: Path) -> None:
    said = typed(tmp_path, *OPTUNA, RATE, "experiment=heads,width", *QUICK)
    assert said.startswith("error: each of several experiments sweeps settings of its own (model.n_heads, seed), and a")


@pytest.mark.process
def test_help_does_not_wait_for_optuna(tmp_path: Path) -> None:
    began = time.perf_counter()
    code = "import sys, runpy, atexit; atexit.register(lambda: print('optuna' in sys.modules, file=sys.stderr)); "
    code += "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "train.py"), "hydra/sweeper=optuna", "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == "False"
    assert time.perf_counter() - began < 30
