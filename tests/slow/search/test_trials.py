"""The trials of a search: which settings are drawn, and what becomes of jobs that fail, repeat or cannot exist."""

import json
import math
from typing import Any

import pytest

pytest.importorskip("optuna", reason="the extra [optuna] is not installed")

from optuna.trial import TrialState

from support.played_searches import EARLY, QUICK, RATE, SPACE, Console, another, by_rate, completed


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


def test_a_setting_that_some_options_lack_is_no_mistake(console: Console) -> None:
    assert (
        console("pos=rope,none", "pos.base=500", "hydra.sweeper.n_trials=2", *QUICK, play=lambda _: completed(1.0)) == 0
    )
    assert len(console.found()["trials"]) == 2
    assert console("pos=rope,none", "pos.bse=500", "hydra.sweeper.n_trials=2", *QUICK) == 1
    assert "none of 2 combinations tried can be run; the first: pos=" in console.err
    assert "has no setting bse" in console.err
