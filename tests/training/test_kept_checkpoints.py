"""``trainer.keep_checkpoints``: the checkpoints of single steps, for what is to be seen along the way."""

from pathlib import Path

import pytest
import torch

from poslab.build import build_model, build_task
from poslab.config.identity import job_key
from poslab.config.schema import checked
from poslab.errors import ConfigError
from poslab.runs.checkpoint import step_of
from poslab.trained import find_checkpoint, load
from poslab.training import checkpoints
from poslab.training.checkpoints import room_for
from support.configs import compose, refusal
from support.runs import train
from support.stopping import TINY, Wholes, assert_same, content, same, stopped_at, told_to_stop

EVERY_5 = "trainer.checkpoint_every_n_steps=5"
ALL = (EVERY_5, "trainer.keep_checkpoints=all")
TWO = (EVERY_5, "trainer.keep_checkpoints=2")


def kept(folder: Path) -> list[int]:
    """The steps of the kept checkpoints, each of which is of the step that its name says."""
    steps = sorted(int(path.stem.removeprefix("step_")) for path in (folder / "checkpoints").glob("step_*.ckpt"))
    assert [step_of(folder / f"checkpoints/step_{step}.ckpt") for step in steps] == steps
    return steps


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (ALL, [5, 10, 12, 15, 20, 24]),
        (("trainer.keep_checkpoints=all", "trainer.checkpoint_every_minutes=0"), [12, 24]),
        (("trainer.keep_checkpoints=all", "trainer.max_steps=20"), [12, 20]),
        (TWO, [20, 24]),
        (("trainer.keep_checkpoints=0", EVERY_5), []),
    ],
)
def test_those_written_in_schedule_are_kept(
    settings: tuple[str, ...], steps: list[int], whole: Wholes, tmp_path: Path
) -> None:
    folder = train(tmp_path / "run", *TINY, *settings)
    assert kept(folder) == steps
    if "trainer.max_steps=20" not in settings:
        assert_same(folder, whole())


def test_one_that_was_kept_is_the_run_of_so_many_steps(whole: Wholes) -> None:
    folder = whole(*ALL)
    one, other = (load(folder, name).model.state_dict() for name in ("step_12", folder / "checkpoints/step_12.ckpt"))
    shorter = load(whole("trainer.max_epochs=1")).model.state_dict()
    assert same(one, shorter)
    assert same(other, shorter)
    with pytest.raises(ConfigError, match=r"no checkpoint 'step_7'; there are: best, last, step_10, .*step_5"):
        find_checkpoint(folder, "step_7")


@pytest.mark.parametrize("settings", [ALL, TWO, (*ALL, "seeds=2")], ids=["all", "two", "seeds"])
def test_a_run_that_was_stopped_and_killed_keeps_the_same_ones(
    settings: tuple[str, ...], whole: Wholes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, undisturbed = tmp_path / "run", whole(*settings)
    told_to_stop(folder, 7, monkeypatch, *settings)
    assert kept(folder) == [5], "what a signal asked for is not in the schedule"
    real, calls = checkpoints.prune, []

    def kill(place: Path, keep: int | None) -> None:
        real(place, keep)
        calls.append(place)
        # Between step_12.ckpt and last.ckpt.
        if place == folder / "checkpoints" and len([one for one in calls if one == place]) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "prune", kill)
        with pytest.raises(SystemExit):
            train(folder, *TINY, *settings, "resume=auto")
    assert (content(folder)["global_step"], kept(folder)[-1]) == (10, 12)
    train(folder, *TINY, *settings, "resume=auto")
    assert_same(folder, undisturbed)
    parts = [".", *(f"copies/seed{seed}" for seed in (0, 1) if "seeds=2" in settings)]
    for part in parts:
        assert kept(folder / part) == kept(undisturbed / part)
        assert len(kept(folder / part)) == (2 if settings == TWO else 6)


def test_a_replica_keeps_those_of_its_run_alone(whole: Wholes) -> None:
    replica, alone = whole(*ALL, "seeds=2") / "copies/seed1", whole(*ALL, "seed=1")
    assert kept(replica) == kept(alone) == [5, 10, 12, 15, 20, 24]
    one, other = (content(folder, "step_10")["state_dict"] for folder in (replica, alone))
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-3, atol=1e-4)
    assert load(replica, "step_10").job.seed == 1


def test_it_may_change_when_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stopped_at(tmp_path / "run", 13, monkeypatch, *TINY, *ALL)
    train(folder, *TINY, "resume=auto")
    assert kept(folder) == [5, 10, 12]
    assert job_key(checked(compose(*ALL))) == job_key(checked(compose()))


@pytest.mark.parametrize("value", ["-1", "some", "1.5", "''", "9" * 50])
def test_another_value_is_refused(value: str, tmp_path: Path) -> None:
    line = refusal(tmp_path / "run", f"trainer.keep_checkpoints={value}")
    assert "must be a number from 0 to 999999999, or all" in line


def test_a_run_is_given_room_for_them(whole: Wholes) -> None:
    def needed(*settings: str) -> int:
        job = checked(compose(*TINY, *settings))
        return room_for(build_model(job, build_task(job)), job.seeds, job.kept_checkpoints)

    assert needed() < needed(*TWO) < needed(*ALL)
    for settings in (TWO, ALL):
        used = sum(file.stat().st_size for file in whole(*settings).rglob("step_*.ckpt"))
        # A checkpoint of so small a model is not only its tensors.
        assert needed(*settings) - needed() > 0.5 * used
