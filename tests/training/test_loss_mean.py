"""``train/loss_mean``: the mean of the training losses since the last logged step, and the log of the last step."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from poslab.config.schema import checked
from poslab.errors import DivergedError
from poslab.experiment.run import run
from poslab.runs.result import stored_result
from support.configs import compose
from support.one_model_runs import a_module, columns
from support.replica_runs import lose, rows_of
from support.runs import train
from support.stopping import TINY, assert_same, content, told_to_stop

# 24 steps in two epochs; with 5 steps from one logged step to the next, a window has steps of both epochs.
EVERY_STEP = (*TINY, "trainer.log_every_n_steps=1", "logger=none")
LOGGED = [0, 5, 10, 15, 20, 23]


def windows(losses: dict[int, float], logged: list[int]) -> dict[int, float]:
    """The mean of the losses after each logged step up to the next one."""
    firsts = [0, *(step + 1 for step in logged[:-1])]
    return {
        end: fmean(losses[step] for step in range(first, end + 1)) for first, end in zip(firsts, logged, strict=True)
    }


def test_each_mean_is_that_of_the_steps_since_the_last_logged_one(finished_runs: Callable[..., Path]) -> None:
    losses = columns(finished_runs(*EVERY_STEP))
    assert losses["train/loss_mean"] == losses["train/loss"]
    assert [*losses["train/loss"]] == [*range(24)]
    logged = columns(finished_runs(*TINY))
    assert logged["train/loss_mean"] == pytest.approx(windows(losses["train/loss"], LOGGED), rel=1e-6)
    # What was logged before stays bit-equal, and the last step is logged with everything that belongs to it.
    for name in ("train/loss", "train/gradient_norm", "learning_rate"):
        assert logged[name] == {step: losses[name][step] for step in LOGGED}


@pytest.mark.parametrize(("steps", "logged"), [(1, [0]), (6, [0, 5]), (7, [0, 5, 6]), (14, [0, 5, 10, 13])])
def test_the_last_step_is_logged_once_wherever_a_limit_of_steps_puts_it(
    steps: int, logged: list[int], tmp_path: Path, finished_runs: Callable[..., Path]
) -> None:
    losses = columns(finished_runs(*EVERY_STEP))["train/loss"]
    found = columns(train(tmp_path, *TINY, "logger=none", f"trainer.max_steps={steps}"))
    assert [*found["train/loss"]] == logged
    assert found["train/loss_mean"] == pytest.approx(windows(losses, logged), rel=1e-6)


def test_a_training_that_a_callback_ends_early_logs_its_last_step(
    tmp_path: Path, finished_runs: Callable[..., Path]
) -> None:
    class Enough(Callback):
        def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
            trainer.should_stop = trainer.global_step == 8

    losses = columns(finished_runs(*EVERY_STEP))["train/loss"]
    run(compose(*TINY, "logger=none"), tmp_path, callbacks=[Enough()])
    found = columns(tmp_path)
    assert found["train/loss"] == {step: losses[step] for step in (0, 5, 7)}
    assert found["train/loss_mean"] == pytest.approx(windows(losses, [0, 5, 7]), rel=1e-6)
    assert max(found["val/loss"]) == 8
    assert content(tmp_path)["poslab"]["window_losses"] is None


@pytest.mark.parametrize("seeds", [(), ("seeds=2",)], ids=["single", "bundle"])
# In the first window, before the last step of a window, in one that the end of an epoch cuts, before the last step.
@pytest.mark.parametrize("update", [3, 10, 12, 14, 23])
def test_a_run_that_was_stopped_within_a_window_resumes_with_it(
    update: int,
    seeds: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    finished_runs: Callable[..., Path],
) -> None:
    whole = finished_runs(*TINY, *seeds)
    folder = tmp_path / "stopped"
    told_to_stop(folder, update, monkeypatch, *seeds)
    stored = content(folder)
    assert stored["global_step"] == update
    window = stored["poslab"]["window_losses"]
    assert window.shape == ((1, (update - 1) % 5, 2 if seeds else 1))
    train(folder, *TINY, *seeds, "resume=auto")
    assert_same(folder, whole)
    shown, wanted = (
        [(event.step, event.value) for event in EventAccumulator(str(one)).Reload().Scalars("train/loss_mean")]
        for one in (folder, whole)
    )
    assert shown == wanted
    assert [step for step, _ in shown] == LOGGED


def test_the_checkpoint_of_an_older_run_begins_an_empty_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_runs: Callable[..., Path]
) -> None:
    losses = columns(finished_runs(*EVERY_STEP))["train/loss"]
    told_to_stop(tmp_path, 14, monkeypatch)
    table = rows_of(tmp_path / "metrics.csv")
    lines = [",".join(name for name in table[0] if name != "train/loss_mean")]
    lines += [",".join(value for name, value in row.items() if name != "train/loss_mean") for row in table]
    (tmp_path / "metrics.csv").write_text("\n".join(lines) + "\n")
    for name in ("last", "best"):
        stored = content(tmp_path, name)
        stored["poslab"] |= {"format": 2}
        del stored["run"]["tables"]
        del stored["poslab"]["window_losses"]
        for replica in stored["poslab"]["replicas"]:
            del replica["start"]
        torch.save(stored, tmp_path / f"checkpoints/{name}.ckpt")
    train(tmp_path, *TINY, "resume=auto")
    found, wanted = columns(tmp_path), columns(finished_runs(*TINY))
    mean = found.pop("train/loss_mean")
    assert found == {name: column for name, column in wanted.items() if name != "train/loss_mean"}
    # Of the window 11 to 15, the updates 14 and 15 came after the checkpoint.
    assert mean == pytest.approx(
        {
            15: fmean([losses[14], losses[15]]),
            20: fmean(losses[step] for step in range(16, 21)),
            23: wanted_last(losses),
        }
    )
    assert stored_result(tmp_path)["start"] == stored_result(finished_runs(*TINY))["start"]


def wanted_last(losses: dict[int, float]) -> float:
    return fmean(losses[step] for step in (21, 22, 23))


def test_a_replica_that_diverges_keeps_out_of_the_others_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        lose(patch, (0,), 7)
        with pytest.raises(DivergedError):
            train(tmp_path, *TINY, "logger=none", "seeds=2")
    lost, other = (columns(tmp_path / f"copies/seed{seed}")["train/loss_mean"] for seed in (0, 1))
    assert [*lost] == [0, 5]
    assert [*other] == LOGGED
    assert {step: value for step, value in columns(tmp_path)["train/loss_mean"].items() if step > 5} == {
        step: value for step, value in other.items() if step > 5
    }


def test_the_mean_is_taken_over_all_ranks_and_each_keeps_its_own_window(tmp_path: Path) -> None:
    """The other rank's losses are ten times as large."""
    module = a_module(checked(compose(*TINY)), tmp_path)
    module._trainer = SimpleNamespace(  # type: ignore[assignment]
        world_size=2,
        strategy=SimpleNamespace(
            reduce=lambda value, reduce_op: (value + 10 * value) / 2,
            all_gather=lambda value, **_: torch.stack([value, 10 * value]),
        ),
        global_step=3,
    )
    for loss in (1.0, 2.0):
        module._watch(torch.tensor([loss]), due=False)
    assert module._by_rank(module.window_losses).tolist() == [[[1.0], [2.0]], [[10.0], [20.0]]]
    assert module._watch(torch.tensor([6.0]), due=True) == {"train/loss": [33.0], "train/loss_mean": [16.5]}
    assert module._by_rank(module.window_losses) is None
