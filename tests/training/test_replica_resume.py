"""A run of several replicas that was stopped resumes exactly."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from poslab.errors import ConfigError, DivergedError
from poslab.runs.result import stored_result
from poslab.training import stack as stack_module
from support.replica_runs import DECAYED, QUIET, RANDOM_ROWS, TINY, lose, weights
from support.runs import train


def interrupted_at(monkeypatch: pytest.MonkeyPatch, update: int) -> None:
    real, calls = stack_module.losses, iter(range(update))

    def interrupt(*arguments: Tensor) -> Tensor:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(stack_module, "losses", interrupt)


@pytest.mark.parametrize("update", [3, 14])
def test_resume_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: int) -> None:
    options = (
        *TINY,
        *RANDOM_ROWS,
        "pos.train_offset=random",
        "trainer.max_epochs=3",
        "optimizer.decay=cosine",
        "seeds=2",
    )
    undisturbed = train(tmp_path / "undisturbed", *options)
    folder = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        interrupted_at(patch, update)
        with pytest.raises(SystemExit):
            train(folder, *options)
    copies = [folder / f"copies/seed{seed}" for seed in (0, 1)]
    assert [stored_result(each)["status"] for each in (folder, *copies)] == ["interrupted"] * 3
    with pytest.raises(ConfigError, match=r"seed1 is one replica of the run in .*stopped; resume that run"):
        train(copies[1], *options[:-1], "seed=1", "resume=auto")
    train(folder, *options, "resume=auto")
    for part in (".", "copies/seed0", "copies/seed1"):
        assert stored_result(folder / part)["status"] == "completed"
        assert (folder / part / "metrics.csv").read_bytes() == (undisturbed / part / "metrics.csv").read_bytes()
        one, two = (weights(run / part) for run in (folder, undisturbed))
        assert all(torch.equal(one[name], two[name]) for name in one)
    assert (
        stored_result(folder / "copies/seed1")["batches_by_length"]
        == stored_result(undisturbed / "copies/seed1")["batches_by_length"]
    )
    pictures = [run / "copies/seed0/figures/neighbour_similarity_curve.png" for run in (folder, undisturbed)]
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


def test_a_lost_copy_stays_lost_when_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (*TINY, *QUIET, *DECAYED, "trainer.max_epochs=3", "seeds=2")
    with monkeypatch.context() as patch:
        lose(patch, (0,), 4)
        with pytest.raises(DivergedError):
            train(tmp_path / "undisturbed", *options)
    with monkeypatch.context() as patch:
        lose(patch, (0,), 4)
        interrupted_at(patch, 9)
        with pytest.raises(SystemExit):
            train(tmp_path / "stopped", *options)
    with pytest.raises(DivergedError, match="seed 0: train/loss is nan at step 4"):
        train(tmp_path / "stopped", *options, "resume=auto")
    one, two = (weights(tmp_path / run) for run in ("stopped", "undisturbed"))
    assert all(torch.equal(one[name], two[name]) for name in one)
