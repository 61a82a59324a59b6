"""A search that was stopped goes on, and no other search in its place."""

import json
import shutil
from typing import Any

import pytest

pytest.importorskip("optuna", reason="the extra [optuna] is not installed")

from support.holding import held_by_another
from support.played_searches import EARLY, QUICK, RATE, SPACE, Console, another, by_rate


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
        ((RATE, "model.n_heads=1,2"), "was over optimizer.lr and cannot be resumed over optimizer.lr, model.n_heads"),
        (("optimizer.lr=0.1,0.2",), "optimizer.lr was searched in"),
        ((RATE, "hydra.sweeper.objectives=[{metric:val/loss,direction:maximize}]"), "searches for val/loss minimize"),
    ):
        assert console(*QUICK, *changed, *more) == 1
        assert says in console.err
        assert console.launchers[-1].batches == []
    # Other bounds, and what does not decide a result, are free.
    assert console("optimizer.lr=tag(log,interval(0.001,0.02))", *QUICK, *more, "logger=none") == 0
    assert len(console.jobs()) == 4


@pytest.mark.parametrize("storage", [None, "sqlite:///all.db"])
def test_a_renamed_search_whose_journal_was_cut_goes_on(console: Console, storage: str | None) -> None:
    """Field case N25; and two searches on one folder."""
    options = (RATE, *QUICK, *(() if storage is None else (f"hydra.sweeper.storage={storage}",)))
    assert console(*options, "hydra.sweeper.n_trials=2") == 0
    folder = console.folder.rename(console.folder.with_name("renamed"))
    if storage is None:
        with open(folder / "study.journal", "ab") as file:
            file.write(b'{"op_code":5,"wor')
    resume = ("hydra.sweeper.n_trials=3", "sweep.resume=latest")
    with held_by_another(folder) as process:
        assert console(*options, *resume) == 1
    assert f"renamed is in use by process {process} on" in console.err
    assert console(*options, *resume) == 0
    assert console.found()["counts"] == {"completed": 3}
    assert ("study.journal is damaged; it is cut back" in console.out) == (storage is None)


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
