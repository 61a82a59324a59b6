"""Words that Hydra accepts and that would have no effect are refused in one line."""

import re
from pathlib import Path

import pytest

from support.commands import typed


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("-m seed=1,2 hydra.run.dir=here", "hydra.run.dir=here is the folder of a single run; .* is hydra.sweep.dir"),
        ("experiment=heads hydra.run.dir=here", "hydra.run.dir=here is the folder of a single run"),
        ("-m seed=1,2 hydra.sweep.subdir=a", "hydra.sweep.subdir=a names the folders of jobs, and a sweep names them"),
        ("-m seed=1,2 resume=auto", "resume=auto resumes a single run; sweep.resume=latest"),
        ("-m seed=1,2 hydra/job_logging=none", "hydra/job_logging=none has no effect, because the program has its own"),
        ("hydra/hydra_logging=disabled", "hydra/hydra_logging=disabled has no effect"),
        ("-m pos=learned,sinusoidal pos=none", "pos is given twice, as pos=learned,sinusoidal and pos=none; give it"),
        ("-m seed=1 seed=1,2", "seed is given twice, as seed=1,2 and seed=1;"),
        ("-m sweep.on_failure=stop,continue", "sweep.on_failure holds for the whole sweep; give it one value"),
        ("-m comparison.margin=1.1,1.5 seed=1", "comparison.margin holds for the whole sweep; give it one value"),
        ("-m seed=1,2 hydra.job.num=4", "hydra.job.num=4 is set for each job by the sweep"),
        ("diagnostics=none +diagnostics.heads.every=2", "heads.every=2 has no effect, because heads was not"),
        ("-m seed=1,2 diagnostics=none +diagnostics.heads.every=2", "2 of 2 .*heads.every=2 has no effect, because"),
        ("hydra.sweep.dir=here", "hydra.sweep.dir=here is for a sweep, and this is a single run; add -m"),
        ("sweep.resume=latest", "sweep.resume=latest is for a sweep"),
        ("hydra/launcher=joblib", "hydra/launcher=joblib is for a sweep"),
        ("-m seed=1,2 hydra.launcher.n_jobs=2", "unknown key 'hydra.launcher.n_jobs'"),
    ],
)  # fmt: skip
def test_a_word_without_effect_is_named(arguments: str, says: str, tmp_path: Path) -> None:
    said = typed(tmp_path, *arguments.split())
    assert isinstance(said, str)
    assert said.startswith("error: ")
    assert "\n" not in said

    assert re.search(says, said), said
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_that_sweeps_is_no_single_run(tmp_path: Path) -> None:
    own = tmp_path / "own" / "experiment" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("# @package _global_\nhydra: {sweeper: {params: {seed: '1,2'}}}\n")
    said = typed(tmp_path, "--config-dir", "own", "experiment=mine")
    assert said.startswith("error: this configuration sweeps (hydra.sweeper.params), and this is a single run; add -m")
    assert [path.name for path in tmp_path.iterdir()] == ["own"]
