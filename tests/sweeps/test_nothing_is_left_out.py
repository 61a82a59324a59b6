"""Each combination that was typed is run, or one line says why not."""

import re
from pathlib import Path

import pytest

from support.played_sweeps import Sweeps


def names(sweeps: Sweeps) -> list[str]:
    return [re.sub("-[0-9a-f]{8}$", "", name) for name in sweeps.ran]


def test_settings_that_decide_no_number_make_jobs_of_their_own(sweeps: Sweeps) -> None:
    assert sweeps("diagnostics=[heads],[position_table]", "data.num_workers=0,1") is None
    jobs = [(list(job.diagnostics), job.data.num_workers) for job in sweeps.ran.values()]
    assert jobs == [(["heads"], 0), (["heads"], 1), (["position_table"], 0), (["position_table"], 1)]
    first = list(sweeps.ran)
    # A resume finds each of them, in any order, and adds what is new.
    resumed = ("data.num_workers=2,1,0", "diagnostics=[position_table],[heads]", "sweep.resume=latest")
    assert sweeps(*resumed) is None
    assert "6 jobs, 4 done before" in sweeps.said
    assert [job.data.num_workers for job in sweeps.ran.values()] == [2, 2]
    assert not set(sweeps.ran) & set(first)


def test_long_values_that_look_alike_have_folders_of_their_own(sweeps: Sweeps) -> None:
    start = " ".join(["7 8 9"] * 12)
    words = (f"diagnostics.heads.prompt='{start} 1','{start} 2'", "diagnostics=heads", "model.max_context_length=90")
    assert sweeps(*words) is None
    assert [job.diagnostics["heads"]["prompt"][-1] for job in sweeps.ran.values()] == ["1", "2"]
    assert all(len(name) < 80 for name in sweeps.ran)


def test_the_same_job_twice_is_run_once_and_said(sweeps: Sweeps) -> None:
    assert sweeps("seed=1,1,2") is None
    assert [job.seed for job in sweeps.ran.values()] == [1, 2]
    assert "the same as another job and not run twice: " in sweeps.said
    # A setting that decides nothing may change at a resume.
    assert sweeps("seed=1,2", "data.num_workers=1", "sweep.resume=latest") is None
    assert "2 jobs, 2 done before" in sweeps.said
    assert sweeps.ran == {}


def test_each_of_several_experiments_has_its_own_grid(sweeps: Sweeps) -> None:
    assert sweeps("experiment=positions,width", "seed=3") is None
    schemes = [job.pos["_target_"].split(".")[2] for job in sweeps.ran.values()]
    assert schemes == ["learned", "sinusoidal", "none", "sinusoidal", "sinusoidal", "sinusoidal"]
    assert [job.model.d_model for job in sweeps.ran.values()] == [32, 32, 32, 16, 32, 64]
    assert {job.seed for job in sweeps.ran.values()} == {3}
    assert names(sweeps)[-2:] == ["d_model32-width", "d_model64-width"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("hydra: {launcher: {n_jobs: 2}}", "experiment=mine sets hydra.launcher.n_jobs, which holds for a whole sweep"),
        ("hydra: {sweep: {dir: here}}", "experiment=mine sets hydra.sweep.dir, which"),
        ("sweep: {on_failure: stop}", "experiment=mine sets sweep.on_failure, which"),
        ("comparison: {margin: 2.0}", "experiment=mine sets comparison.margin, which"),
    ],
)
def test_a_swept_experiment_cannot_set_what_holds_for_the_sweep(sweeps: Sweeps, content: str, says: str) -> None:
    own = sweeps.folder / "own" / "experiment" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(f"# @package _global_\n{content}\n")
    words = ["experiment=lesson,mine"]
    if "launcher" in content:
        words.append("hydra/launcher=joblib")
    said = sweeps(*words, flags=("--config-dir", "own", "-m"))
    assert says in said
    assert "\n" not in said
    assert [path.name for path in Path(sweeps.folder).iterdir()] == ["own"]
