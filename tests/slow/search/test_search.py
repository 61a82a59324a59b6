"""Searches as a person runs them; jobs that only have to leave a result are played by a launcher of the test's own."""

import contextlib
import hashlib
import json
import logging
import math
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher

from poslab.errors import ConfigError
from poslab.runs.result import stored_status
from poslab.sweeps.grid import job_label
from poslab.sweeps.plan import Job
from poslab.sweeps.sweep import Sweep
from support.commands import start
from support.paths import ROOT

optuna = pytest.importorskip("optuna", reason="the extra [optuna] is not installed")

from hydra.core.override_parser.overrides_parser import OverridesParser  # noqa: E402
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: E402
from optuna.trial import TrialState  # noqa: E402

from poslab.sweeps.search.options import open_storage  # noqa: E402
from poslab.sweeps.search.pruning import PRUNING_FILE  # noqa: E402
from poslab.sweeps.search.space import literal, parameter_of  # noqa: E402

QUICK = ("trainer.max_steps=5", "data.val_examples=32", "diagnostics=none")
OPTUNA = ("-m", "hydra/sweeper=optuna")
EARLY = "hydra.sweeper.sampler_options={n_startup_trials:3}"
"""TPE draws at random until it has this many results."""
RATE = "optimizer.lr=tag(log,interval(0.0005,0.05))"
SPACE = (RATE, "model.n_heads=choice(1,2,4,8)", "model.d_model=range(16,65,16)", "pos=learned,sinusoidal")
Played = Callable[[dict[str, Any]], dict[str, Any]]


def completed(loss: float, total: int = 1000, **metrics: float) -> dict[str, Any]:
    return {"status": "completed", "metrics": {"val/loss": loss, **metrics}, "parameters": {"total": total}}


def by_rate(settings: dict[str, Any]) -> dict[str, Any]:
    """Best at a rate of 0.01."""
    return completed(abs(math.log10(float(settings["optimizer.lr"])) + 2))


class PlayedLauncher(Launcher):
    """Runs no job: writes the result that ``play`` makes of its settings, as the job itself would."""

    def __init__(self, play: Played) -> None:
        self.play = play
        self.batches: list[list[dict[str, Any]]] = []

    def setup(self, **_: Any) -> None: ...

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
        self.batches.append([])
        for overrides in job_overrides:
            settings = {
                key.lstrip("+"): literal(value) for key, _, value in (text.partition("=") for text in overrides)
            }
            folder = Path(str(settings["hydra.sweep.dir"]).strip("'")) / settings["hydra.sweep.subdir"]
            folder.mkdir(exist_ok=True)
            self.batches[-1].append(settings)
            result = self.play(settings)
            (folder / "result.json").write_text(json.dumps(result))
        return []


def known_job(sweep: Sweep, overrides: list[str], varying: set[str]) -> Job:
    """A job as `Sweep` makes it, without the tenth of a second that Hydra takes to compose it."""
    if "model.n_heads=3" in overrides:
        return Job(overrides, reason="model.d_model=32 cannot be split into model.n_heads=3 equal heads")
    key = hashlib.sha256(repr(overrides).encode()).hexdigest()[:8]
    name = f"{job_label(overrides, varying)}-{key}"
    return Job(overrides, key, name, state=stored_status(sweep.folder / name) or "new")


@dataclass
class Console:
    """``python train.py`` in this process, with a launcher that plays."""

    cwd: Path
    monkeypatch: pytest.MonkeyPatch
    out: str = ""
    err: str = ""
    launchers: list[PlayedLauncher] = field(default_factory=list)

    def __call__(self, *arguments: str, play: Played = by_rate) -> int:
        """The exit code; what was said is in ``out`` and ``err``."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = self._run(arguments, play)
            for file in (out, err):
                file.seek(0)
            self.out, self.err = out.read(), err.read()
        return code

    def _run(self, arguments: Sequence[str], play: Played) -> int:
        self.launchers.append(PlayedLauncher(play))
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        with self.monkeypatch.context() as patch, contextlib.chdir(self.cwd):
            patch.setattr(Plugins, "instantiate_launcher", lambda *_, **__: self.launchers[-1])
            patch.setattr("poslab.comparison.write_comparison", lambda *_: None)
            patch.setattr(Sweep, "_job", known_job)
            patch.setattr(sys, "argv", ["train.py", *OPTUNA, *arguments])
            patch.setenv("HYDRA_FULL_ERROR", "0")
            try:
                runpy.run_path(str(ROOT / "train.py"), run_name="__main__")
            except SystemExit as end:
                # What a shell would see of it.
                if isinstance(end.code, str):
                    print(end.code, file=sys.stderr)  # noqa: T201
                    return 1
                return int(end.code or 0)
            finally:
                for handler in set(root.handlers) - set(handlers):
                    handler.close()
                root.handlers[:] = handlers
                root.setLevel(level)
        return 0

    @property
    def folder(self) -> Path:
        (found,) = (self.cwd / "outputs/sweeps").iterdir()
        return found

    def found(self) -> dict[str, Any]:
        return json.loads((self.folder / "search.json").read_text())

    def settings(self) -> list[dict[str, Any]]:
        return [trial["settings"] for trial in self.found()["trials"]]

    def jobs(self) -> list[dict[str, Any]]:
        return [job for launcher in self.launchers for batch in launcher.batches for job in batch]

    def study(self, storage: str | None = None) -> Any:
        return optuna.load_study(study_name=self.folder.name, storage=open_storage(storage, self.folder))


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Console:
    return Console(tmp_path, monkeypatch)


def another(console: Console, name: str) -> Console:
    """A second person in a folder of their own."""
    (console.cwd / name).mkdir()
    return Console(console.cwd / name, console.monkeypatch)


def distribution(typed: str) -> Any:
    return parameter_of(OverridesParser.create().parse_overrides([typed])[0])


@pytest.mark.parametrize(
    ("typed", "expected", "values"),
    [
        ("a=interval(0.0005,0.05)", FloatDistribution(0.0005, 0.05), None),
        ("a=tag(log,interval(1e-4,1))", FloatDistribution(1e-4, 1.0, log=True), None),
        ("a=int(interval(1,8))", IntDistribution(1, 8), [1, 2, 3, 4, 5, 6, 7, 8]),
        ("a=tag(log,int(interval(1,100)))", IntDistribution(1, 100, log=True), list(range(1, 101))),
        ("a=range(16,65,16)", IntDistribution(16, 64, step=16), [16, 32, 48, 64]),
        ("a=range(10,1,-3)", IntDistribution(4, 10, step=3), [4, 7, 10]),
        ("a=range(0,1,0.25)", FloatDistribution(0.0, 0.75, step=0.25), [0.0, 0.25, 0.5, 0.75]),
        ("a=1,2", CategoricalDistribution(["1", "2"]), ["1", "2"]),
        ("a='x,y',null,[0.9,0.99]", CategoricalDistribution(["'x,y'", "null", "[0.9,0.99]"]), None),
    ],
)
def test_hydras_sweeps_are_optunas_distributions(typed: str, expected: Any, values: list[Any] | None) -> None:
    parameter = distribution(typed)
    assert parameter.distribution == expected
    if values is not None:
        assert parameter.every_value() == values


def test_a_drawn_step_is_the_number_that_was_typed() -> None:
    parameter = distribution("a=range(0,1,0.1)")
    drawn = [0.1 * k for k in range(10)]
    assert repr(drawn[3]) == "0.30000000000000004"
    assert [parameter.override(value) for value in drawn[:4]] == ["a=0.0", "a=0.1", "a=0.2", "a=0.3"]


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("a=interval(2,1)", "above its end"),
        ("a=tag(log,interval(0,1))", "must begin above 0"),
        ("a=range(5,1)", "no value in this range"),
        ("a=tag(log,range(1,100,3))", "step 1"),
    ],
)
def test_a_range_that_is_none_is_refused(typed: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        distribution(typed)
    assert str(refused.value).startswith(typed)


def test_every_kind_of_setting_is_searched(console: Console) -> None:
    assert console(*SPACE, "hydra.sweeper.n_trials=20", *QUICK) == 0
    jobs = console.jobs()
    assert len({json.dumps(job) for job in jobs}) == len(jobs)
    assert all(0.0005 <= job["optimizer.lr"] <= 0.05 for job in jobs)
    assert {job["model.n_heads"] for job in jobs} == {1, 2, 4, 8}
    assert {job["model.d_model"] for job in jobs} == {16, 32, 48, 64}
    assert {job["pos"] for job in jobs} == {"learned", "sinusoidal"}
    assert all(job["trainer.max_steps"] == 5 for job in jobs)
    found = console.found()
    assert found["counts"] == {"completed": 20}
    (best,) = found["best"]
    losses = {trial["folder"]: trial["values"]["val/loss"] for trial in found["trials"]}
    assert losses[best["folder"]] == min(losses.values())
    assert {trial["folder"] for trial in found["trials"]} == {job["hydra.sweep.subdir"] for job in jobs}
    assert best["settings"].keys() == {"optimizer.lr", "model.n_heads", "model.d_model", "pos"}
    out = console.out
    assert "best trial by val/loss (minimize)" in out
    assert best["folder"] in (console.folder / "search.md").read_text().split("## All trials")[0]


def test_tpe_learns_from_what_it_is_told(console: Console) -> None:
    """A search that is not told, or told wrong, is no better than drawing at random."""
    assert console(RATE, "hydra.sweeper.n_trials=40", *QUICK) == 0
    late = [by_rate(settings)["metrics"]["val/loss"] for settings in console.settings()[20:]]
    # Over the whole interval the mean distance from the best rate is 0.54.
    assert sum(late) / len(late) < 0.36


def test_maximize_is_the_other_way_round(console: Console) -> None:
    def by_low_rate(settings: dict[str, Any]) -> dict[str, Any]:
        return completed(1.0, **{"val/accuracy": 1 - float(settings["optimizer.lr"])})

    goal = "hydra.sweeper.objectives=[{metric:val/accuracy,direction:maximize}]"
    assert console(RATE, goal, "hydra.sweeper.n_trials=8", *QUICK, play=by_low_rate) == 0
    (best,) = console.found()["best"]
    assert best["settings"]["optimizer.lr"] == min(settings["optimizer.lr"] for settings in console.settings())


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_seed_decides_the_trials(console: Console, sampler: str) -> None:
    tried = []
    options = (f"hydra.sweeper.sampler={sampler}", "hydra.sweeper.n_trials=5", *([EARLY] if sampler == "tpe" else []))
    for name, seed in (("first", 3), ("again", 3), ("other", 4)):
        one = another(console, name)
        assert one(*SPACE, *options, f"hydra.sweeper.seed={seed}", *QUICK) == 0
        tried.append(one.settings())
    assert tried[0] == tried[1] != tried[2]


def test_a_grid_is_tried_once_and_whole(console: Console) -> None:
    grid = ("optimizer.lr=0.001,0.01", "model.n_heads=1,2", "seed=range(0,3)", "hydra.sweeper.sampler=grid")
    assert console(*grid, "hydra.sweeper.n_trials=7", *QUICK) == 0
    assert console(*grid, "hydra.sweeper.n_trials=100", "sweep.resume=latest", *QUICK) == 0
    tried = {(job["optimizer.lr"], job["model.n_heads"], job["seed"]) for job in console.jobs()}
    assert len(console.launchers[0].batches) == 7
    assert len(console.jobs()) == len(tried) == 12


def test_two_objectives_give_the_front(console: Console) -> None:
    def traded(settings: dict[str, Any]) -> dict[str, Any]:
        width = int(settings["model.d_model"])
        # Width 48 is worse than 32 in both.
        accuracy = {16: 0.5, 32: 0.8, 48: 0.7, 64: 0.9}[width]
        return completed(1.0, total=width * 100, **{"val/accuracy": accuracy})

    goals = (
        "hydra.sweeper.objectives="
        "[{metric:val/accuracy,direction:maximize},{metric:parameters/total,direction:minimize}]"
    )
    assert console("model.d_model=range(16,65,16)", goals, "hydra.sweeper.n_trials=15", *QUICK, play=traded) == 0
    front = [
        (trial["values"]["val/accuracy"], trial["values"]["parameters/total"]) for trial in console.found()["best"]
    ]
    assert front == [(0.5, 1600), (0.8, 3200), (0.9, 6400)]
    assert "3 best compromises of val/accuracy (maximize) and parameters/total (minimize)" in (console.out)


def test_a_drawn_job_that_is_known_is_not_run_again(console: Console) -> None:
    assert (
        console(
            "model.n_heads=1,2",
            "hydra.sweeper.n_trials=9",
            "hydra.sweeper.n_jobs=3",
            *QUICK,
            play=lambda settings: completed(settings["model.n_heads"]),
        )
        == 0
    )
    assert len(console.jobs()) == 2
    assert console.found()["counts"] == {"completed": 9}
    assert {trial["values"]["val/loss"] for trial in console.found()["trials"]} == {1.0, 2.0}


def test_trials_without_a_number_are_failed_and_the_search_goes_on(console: Console) -> None:
    ends = iter(
        [
            completed(0.5),
            {"status": "diverged", "error": "DivergedError: val/loss is nan", "metrics": {"val/loss": 1.0}},
            {"status": "failed", "error": "RuntimeError: boom"},
            {"status": "completed", "metrics": {"val/accuracy": 1.0}},
            completed(math.nan),
            completed(math.inf),
            completed(0.4),
        ]
    )
    assert console(RATE, "hydra.sweeper.n_trials=7", *QUICK, play=lambda _: next(ends)) == 0
    found = console.found()
    assert found["counts"] == {"completed": 2, "failed": 5}
    assert [trial["reason"] for trial in found["trials"]] == [
        "",
        "DivergedError: val/loss is nan",
        "RuntimeError: boom",
        "its result has no finite val/loss",
        "its result has no finite val/loss",
        "its result has no finite val/loss",
        "",
    ]
    assert [trial.state for trial in console.study().trials].count(TrialState.FAIL) == 5
    assert found["best"][0]["trial"] == 6
    assert "search done: 5 failed, 2 completed of 7 trials" in console.out


def test_combinations_that_cannot_exist_are_failed_trials(console: Console) -> None:
    assert console("model.n_heads=3,4", "optimizer.lr=interval(0.001,0.01)", "hydra.sweeper.n_trials=8", *QUICK) == 0
    found = console.found()
    assert all(job["model.n_heads"] == 4 for job in console.jobs())
    invalid = [trial for trial in found["trials"] if trial["settings"]["model.n_heads"] == 3]
    assert invalid
    assert all(trial["state"] == "failed" and "equal heads" in trial["reason"] for trial in invalid)
    assert len(found["trials"]) == 8


def test_on_invalid_fail_ends_the_search(console: Console) -> None:
    strict = ("model.n_heads=3,4", "sweep.on_invalid=fail", "hydra.sweeper.n_trials=8", *QUICK)
    assert console(*strict, play=lambda _: completed(1.0)) == 1
    assert "cannot be run: " in console.err


def test_nothing_completed_is_exit_code_1(console: Console) -> None:
    broken = {"status": "failed", "error": "RuntimeError: boom"}
    assert console(RATE, "hydra.sweeper.n_trials=3", *QUICK, play=lambda _: broken) == 1
    assert console.found()["best"] == []
    assert "no trial was completed" in console.out


def test_n_jobs_are_launched_together(console: Console) -> None:
    assert console(RATE, "hydra.sweeper.n_trials=10", "hydra.sweeper.n_jobs=4", *QUICK) == 0
    assert [len(batch) for batch in console.launchers[0].batches] == [4, 4, 2]
    assert len({job["optimizer.lr"] for job in console.jobs()}) == 10


@pytest.mark.parametrize(
    ("stop", "storage"),
    [(KeyboardInterrupt(), None), (SystemExit(130), "sqlite:///trials.db")],
    ids=["between jobs, a journal", "in a job, a database"],
)
def test_a_stopped_search_goes_on_as_if_it_had_not_been(
    console: Console, stop: BaseException, storage: str | None
) -> None:
    """Field case S3: the count goes on, nothing is run twice, and the trials are those of an undisturbed search."""
    where = () if storage is None else (f"hydra.sweeper.storage={storage}",)
    options = (*SPACE, *QUICK, EARLY, *where)
    whole = another(console, "whole")
    assert whole(*options, "hydra.sweeper.n_trials=7") == 0

    def stopped(settings: dict[str, Any]) -> dict[str, Any]:
        if len(console.jobs()) == 5:
            raise stop
        return by_rate(settings)

    assert console(*options, "hydra.sweeper.n_trials=7", play=stopped) == 130
    assert console.found()["counts"] == {"completed": 4, "running": 1}
    assert console(*options, "hydra.sweeper.n_trials=7", "sweep.resume=latest") == 0
    assert console.found()["counts"] == {"completed": 7}
    assert console.settings() == whole.settings()
    assert console.found()["best"] == whole.found()["best"]
    assert [len(launcher.batches) for launcher in console.launchers] == [5, 3]
    # There is nothing left to do, and more can be asked for.
    assert console(*options, "hydra.sweeper.n_trials=7", "sweep.resume=latest") == 0
    assert console.launchers[-1].batches == []
    assert console(*options, "hydra.sweeper.n_trials=9", "sweep.resume=latest") == 0
    assert len(console.launchers[-1].batches) == 2
    plan = json.loads((console.folder / "sweep.json").read_text())
    assert {job["name"] for job in plan} == {job["hydra.sweep.subdir"] for job in console.jobs()}


def test_another_search_cannot_go_on_in_its_place(console: Console) -> None:
    assert console(RATE, "hydra.sweeper.n_trials=2", *QUICK) == 0
    more = ("hydra.sweeper.n_trials=4", "sweep.resume=latest")
    for changed, says in (
        ((RATE, "trainer.max_steps=6"), "trainer.max_steps was 5 and is 6"),
        ((RATE, "model.n_heads=1,2"), "was over optimizer.lr and cannot go on over optimizer.lr, model.n_heads"),
        (("optimizer.lr=0.1,0.2",), "optimizer.lr was searched in"),
        ((RATE, "hydra.sweeper.objectives=[{metric:val/loss,direction:maximize}]"), "searches for val/loss minimize"),
    ):
        assert console(*QUICK, *changed, *more) == 1
        assert says in console.err
        assert console.launchers[-1].batches == []
    # Other bounds, and what does not decide a result, are free.
    assert console("optimizer.lr=tag(log,interval(0.001,0.02))", *QUICK, *more, "logger=none") == 0
    assert len(console.jobs()) == 4


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


def test_a_grid_sweeps_folder_holds_no_search(console: Console) -> None:
    folder = console.cwd / "outputs/sweeps/grid"
    folder.mkdir(parents=True)
    (folder / "sweep.json").write_text("[]")
    assert console(RATE, "sweep.resume=latest", *QUICK) == 1
    assert "holds no search" in console.err


def test_a_study_name_that_is_taken_is_not_mixed_up(console: Console) -> None:
    options = (RATE, "hydra.sweeper.n_trials=2", "hydra.sweeper.storage=sqlite:///all.db", "hydra.sweep.dir=s/one")
    assert console(*options, *QUICK) == 0
    shutil.rmtree(console.cwd / "s")
    assert console(*options, *QUICK) == 1
    assert "holds a study 'one' already" in console.err


@pytest.mark.process
def test_without_optuna_one_line_says_how_to_get_it(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "optuna.py").write_text("raise ModuleNotFoundError(\"No module named 'optuna'\", name='optuna')\n")
    path = os.pathsep.join([str(missing), os.environ.get("PYTHONPATH", "")])
    done = start(*OPTUNA, RATE, *QUICK, cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 1
    assert done.stderr == "error: hydra/sweeper=optuna needs Optuna: pip install 'poslab[optuna]'\n"
    assert not (tmp_path / "outputs").exists()


# Real jobs, in this process and in others.


def search_of(cwd: Path) -> tuple[Path, dict[str, Any]]:
    (folder,) = (cwd / "outputs/sweeps").iterdir()
    return folder, json.loads((folder / "search.json").read_text())


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
    child = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        cwd=tmp_path,
        env={**os.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
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
    child = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
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
