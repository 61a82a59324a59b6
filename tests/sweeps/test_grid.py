"""Which jobs a grid consists of, and what their folders are called."""

import pytest

from poslab.errors import ConfigError
from poslab.sweeps.grid import job_label, varying_keys, with_jobs
from support.paths import CONF

JOBS = ["pos=alibi", "pos=hard_alibi model.n_heads=8", "pos=learned +pos.train_offset=random"]


def test_without_listed_jobs_the_grid_stays_as_it_is():
    assert with_jobs([("seed=0",), ("seed=1",)], []) == [["seed=0"], ["seed=1"]]


def test_each_listed_job_meets_each_combination():
    grid = with_jobs([["seed=0"], ["seed=1"]], JOBS)
    assert len(grid) == 6
    assert grid[1] == ["seed=0", "pos=hard_alibi", "model.n_heads=8"]
    assert grid[5] == ["seed=1", "pos=learned", "+pos.train_offset=random"]


def test_what_is_typed_selects_among_the_listed_jobs():
    assert with_jobs([["pos=alibi", "seed=0"], ["pos=learned", "seed=0"]], JOBS) == [
        ["pos=alibi", "seed=0"],
        ["pos=learned", "seed=0", "+pos.train_offset=random"],
    ]


def test_what_is_typed_holds_for_jobs_that_do_not_name_it():
    assert with_jobs([["model.n_heads=8"]], JOBS)[0] == ["model.n_heads=8", "pos=alibi"]
    assert with_jobs([["model.n_heads=4"]], JOBS) == [
        ["model.n_heads=4", "pos=alibi"],
        ["model.n_heads=4", "pos=learned", "+pos.train_offset=random"],
    ]


def test_a_value_that_no_listed_job_has_is_refused_with_the_jobs():
    with pytest.raises(ConfigError, match=r"none of the jobs .* has pos=rope; there are: pos=alibi; pos=hard_alibi"):
        with_jobs([["seed=0", "pos=rope"]], JOBS)


def test_a_value_with_spaces_is_quoted_as_in_a_shell():
    assert with_jobs([[]], ["pos=alibi 'model.token_file=my rows.npy'"]) == [
        ["pos=alibi", "model.token_file=my rows.npy"]
    ]


def test_a_key_that_only_some_jobs_have_tells_their_folders_apart():
    grid = with_jobs([["seed=0"]], JOBS)
    varying = varying_keys(grid)
    assert [job_label(overrides, varying) for overrides in grid] == [
        "alibi",
        "hard_alibi-n_heads8",
        "learned-random",
    ]


def test_the_experiment_lists_schemes_that_exist() -> None:
    text = (CONF / "experiment/length_generalization.yaml").read_text()
    schemes = {path.stem for path in (CONF / "pos").glob("*.yaml")}
    listed = {line.split("pos=")[1].split()[0] for line in text.splitlines() if "      - pos=" in line}
    assert len(listed) >= 8
    assert listed <= schemes


def test_a_choice_is_its_own_label_and_a_number_or_a_switch_has_its_key():
    overrides = ["pos=t5", "seed=3", "model.tie_embeddings=true", "pos.train_offset=random"]
    assert job_label(overrides, {"pos", "seed", "model.tie_embeddings", "pos.train_offset"}) == (
        "t5-seed3-tie_embeddingstrue-random"
    )


@pytest.mark.parametrize("job", ["pos=alibi 'open", "", "alibi", "5"])
def test_a_listed_job_that_is_none_is_named(job: str):
    with pytest.raises(ConfigError, match=r"^hydra\.sweeper\.jobs: "):
        with_jobs([["seed=0"]], [job])
