"""A setting that is typed once holds for each job whose options have it; the other jobs are invalid."""

import json

import pytest

from support.played_sweeps import Sweeps


def test_a_key_that_the_default_option_lacks_is_set_in_each_job(sweeps: Sweeps) -> None:
    assert sweeps("pos=rope,none,sinusoidal", "pos.base=500") is None
    assert [job.pos["base"] for job in sweeps.ran.values()] == [500, 500]
    assert "pos=none pos.base=500: pos=none has no setting base" in sweeps.said
    (invalid,) = json.loads((sweeps.sweep / "invalid.json").read_text())
    assert invalid["reason"] == "pos=none has no setting base; there are: none"


def test_on_invalid_fail_names_the_option_and_runs_nothing(sweeps: Sweeps) -> None:
    said = sweeps("task=count,repeat", "task.length=4", "sweep.on_invalid=fail")
    assert said.startswith("error: 1 of 2 combinations cannot be run: ")
    assert "task=repeat has no setting length; there are: min_seq_len, n_symbols, seq_len" in said
    assert sweeps.ran == {}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("pos=rope,sinusoidal", "pos.bse=5"), "pos=rope has no setting bse; did you mean 'base'?"),
        (("seed=1,2", "pos.base=5"), "unknown key 'pos.base'; under 'pos' there are: "),
        (("pos=rope,none", "data.batch_sice=5"), "unknown key 'data.batch_sice'; did you mean 'data.batch_size'?"),
        (
            ("pos=rope,none", "sweep.on_invalids=fail"),
            "unknown key 'sweep.on_invalids'; did you mean 'sweep.on_invalid'",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_mistake_in_every_job_is_one_line(sweeps: Sweeps, words: tuple[str, ...], says: str) -> None:
    said = sweeps(*words)
    assert says in said
    assert said.startswith("error: ")
    assert "\n" not in said
    assert not (sweeps.folder / "outputs").exists()


def test_an_experiment_s_options_are_judged_one_by_one_too(sweeps: Sweeps) -> None:
    assert sweeps("experiment=positions", "pos.scale=2", "seed=1", flags=()) is None
    assert [job.pos["scale"] for job in sweeps.ran.values()] == [2]
    assert "pos=learned has no setting scale" in sweeps.said
