"""Which settings decide a result: one table, and everything that is derived from it."""

from dataclasses import asdict

import pytest

from poslab.comparison.axes import flat_settings, is_setting
from poslab.config.identity import (
    SETTINGS,
    Role,
    Setting,
    choice_of,
    differences,
    flat,
    identity,
    job_key,
    model_settings,
    role_of,
)
from poslab.config.overrides import job_overrides
from poslab.config.schema import TrainConfig, checked
from poslab.runs.hparams import hparams
from support.configs import compose


def job(*overrides: str) -> TrainConfig:
    return checked(compose(*overrides))


# A job's key is the name of its folder in a sweep: with another one, a sweep that is resumed would run all jobs again.
KEYS = {
    "": "1df50a8b",
    "pos=sinusoidal seed=3": "ecdabd7a",
    "optimizer=adamw optimizer.weight_decay_on=all": "3b67379a",
    "seeds=4 deterministic=true trainer.threads=2": "4b829491",
    "model=transformer model.n_layers=2 trainer=cpu diagnostics=none logger=none compile=true": "373636e9",
}


@pytest.mark.parametrize(("overrides", "key"), KEYS.items())
def test_a_job_keeps_the_key_that_stored_sweeps_know_it_by(overrides: str, key: str) -> None:
    assert job_key(job(*overrides.split())) == key


# The uses that leave a setting out, by its role.
LEFT_OUT = {
    Role.RESULT: set(),
    Role.TRAINING: set(),
    Role.REPLICAS: {"axes", "hparams"},
    Role.EXECUTION: {"identity", "axes"},
    Role.OUTPUT: {"identity", "axes", "hparams"},
    Role.ORIGIN: {"identity", "axes", "hparams"},
    Role.RESTART: {"identity", "axes", "hparams", "overrides"},
    Role.HYDRA: {"identity", "axes", "overrides"},
}


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("listed", ["optimizer.decay", "optimizer"])
def test_one_entry_in_the_table_is_enough_for_every_use(
    role: Role, listed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SETTINGS, listed, Setting(role))
    settings = asdict(job())
    found = {
        "identity": "optimizer.decay" in identity(settings),
        "axes": "optimizer.decay" in flat_settings(settings),
        "hparams": "optimizer.decay" in hparams(job()),
        "overrides": job_overrides(["+optimizer.decay=linear"]) != [],
    }
    assert {use for use, there in found.items() if not there} == LEFT_OUT[role]
    assert is_setting("optimizer.decay=linear") is found["axes"]


def test_every_entry_of_the_table_is_a_setting() -> None:
    jobs = [asdict(job()), asdict(job("pos=sinusoidal")), asdict(job("pos=rope"))]
    known = {key for settings in jobs for key in (*settings, *flat(settings))} | {"defaults", "hydra"}
    assert set(SETTINGS) <= known


def test_what_is_not_in_the_table_decides_the_result() -> None:
    settings = flat(asdict(job("diagnostics=none")))
    assert {key for key in settings if role_of(key) is Role.RESULT} <= set(identity(asdict(job()))) | {
        "data.holdout",
        "deterministic",
        "trainer.num_nodes",
        "trainer.stop_when",
        "init_from_sha256",
        "trainer.accumulate_batches",
        "optimizer.weight_decay_on",
    }


@pytest.mark.parametrize(
    ("key", "role"),
    [
        ("trainer.threads", Role.EXECUTION),
        ("trainer", Role.RESULT),
        ("trainer.thread", Role.RESULT),
        ("diagnostics.heads.every", Role.OUTPUT),
        ("hydra/launcher", Role.HYDRA),
        ("hydra.run.dir", Role.HYDRA),
        ("seed", Role.RESULT),
        ("seeds", Role.REPLICAS),
    ],
)
def test_a_part_s_role_is_that_of_its_settings(key: str, role: Role) -> None:
    assert role_of(key) is role


def test_the_value_of_older_runs_leaves_the_identity_as_it_was() -> None:
    for key in (
        "seeds",
        "deterministic",
        "trainer.num_nodes",
        "trainer.stop_when",
        "init_from_sha256",
        "trainer.accumulate_batches",
        "data.holdout",
        "optimizer.weight_decay_on",
        "pos.scale",
    ):
        assert key not in identity(asdict(job("pos=sinusoidal")))
    parts = {"trainer": {"num_nodes": 2}, "pos": {"scale": 0.5}, "data": {"holdout": 0.1}}
    changed = identity({"seeds": 2, "deterministic": True, **parts})
    assert changed == {
        "seeds": 2,
        "deterministic": True,
        "trainer.num_nodes": 2,
        "pos.scale": 0.5,
        "data.holdout": 0.1,
    }
    # As before the settings were there.
    assert set(identity({"pos": job("pos=rope").pos})) == {"pos._target_", "pos.base"}
    # A number that is typed without a point is the same number.
    assert identity({"pos": {"scale": 1}}) == {}


def test_a_setting_that_older_runs_do_not_have_is_named_with_the_value_that_they_had() -> None:
    older = identity(asdict(job("optimizer=adamw", "optimizer.weight_decay_on=all")))
    newer = identity(asdict(job("optimizer=adamw")))
    assert differences(older, newer) == "optimizer.weight_decay_on was all and is matrices"
    assert differences({"optimizer.lr": 1}, {}) == "optimizer.lr was 1 and is not set"


def test_a_checkpoint_s_settings_of_the_model_are_whole() -> None:
    settings = model_settings(job())
    assert {"model.token_init", "model.dropout", "model.d_model", "pos._target_", "task.length"} <= set(settings)
    assert not any(key.startswith(("optimizer", "trainer", "data")) for key in settings)


def test_a_class_is_named_as_on_the_command_line() -> None:
    assert choice_of("poslab.positions.learned.LearnedPositionalEmbedding") == "learned"


def test_flat_keeps_order_and_drops_empty_parts() -> None:
    assert flat({"a": {"b": 1, "c": {"d": None}}, "e": [1, {"f": 2}], "g": {}}) == {
        "a.b": 1,
        "a.c.d": None,
        "e": [1, {"f": 2}],
    }
