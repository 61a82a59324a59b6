"""Jobs that are listed one by one, combined with what is typed."""

import json
from pathlib import Path

import pytest
from conftest import CONF, start

from poslab.config import ConfigError
from poslab.grid import combined
from poslab.sweeps import job_label, varying_keys

LISTED = [["pos=alibi"], ["pos=hard_alibi", "model.n_heads=8"], ["pos=learned"], ["pos=learned", "pos.base=3"]]


def test_every_job_goes_with_every_combination() -> None:
    assert combined(LISTED[:2], [["seed=0"], ["seed=1"]]) == [
        ["pos=alibi", "seed=0"],
        ["pos=alibi", "seed=1"],
        ["pos=hard_alibi", "model.n_heads=8", "seed=0"],
        ["pos=hard_alibi", "model.n_heads=8", "seed=1"],
    ]


def test_what_is_typed_for_a_key_of_the_jobs_chooses_among_them() -> None:
    assert combined(LISTED, [["pos=learned"], ["pos=alibi"]]) == [
        ["pos=alibi"],
        ["pos=learned"],
        ["pos=learned", "pos.base=3"],
    ]
    assert combined(LISTED, [["model.n_heads=2"]]) == [
        ["pos=alibi", "model.n_heads=2"],
        ["pos=learned", "model.n_heads=2"],
        ["pos=learned", "pos.base=3", "model.n_heads=2"],
    ]


def test_a_choice_that_no_job_makes_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"goes with pos=rope; they are: pos=alibi; pos=hard_alibi model\.n_heads=8;"):
        combined(LISTED, [["pos=rope"]])


def test_a_setting_of_some_of_the_jobs_is_part_of_their_names() -> None:
    keys = varying_keys(LISTED)
    assert keys == {"pos", "model.n_heads", "pos.base"}
    assert [job_label(job, keys) for job in LISTED] == ["alibi", "hard_alibi-n_heads8", "learned", "learned-base3"]


@pytest.mark.slow
@pytest.mark.process
def test_an_experiment_with_listed_jobs_runs_them_and_typed_values_count(tmp_path: Path) -> None:
    quick = ("trainer.max_steps=2", "data.val_examples=8", "diagnostics=none", "logger=none")
    done = start(
        "-m", "experiment=length_generalization", "pos=hard_alibi,learned", "seed=3,4", *quick, "hydra.sweep.dir=s",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = {
        path.parent.name.rpartition("-")[0]: json.loads(path.read_text()) for path in tmp_path.glob("s/*/result.json")
    }
    assert set(found) == {
        f"{name}-seed{seed}"
        for name in ("hard_alibi-n_heads8-n_windows4", "learned", "learned-random")
        for seed in (3, 4)
    }
    assert {result["status"] for result in found.values()} == {"completed"}


def test_the_experiment_lists_every_scheme() -> None:
    text = (CONF / "experiment/length_generalization.yaml").read_text()
    schemes = {path.stem for path in (CONF / "pos").glob("*.yaml")}
    assert {line.split("pos=")[1].split()[0] for line in text.splitlines() if "      - pos=" in line} == schemes
