"""Runs of one model: where they log, validate and end, and that a run is its seed's."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import poslab.training.learner
import poslab.training.module
from poslab.evaluation.metrics import Score, score
from support.one_model_runs import QUIET, SMALL, checkpoint, columns, result, weights
from support.runs import train

SHORT = (*SMALL, "trainer.max_epochs=1", "trainer.log_every_n_steps=1", "model.dropout=0.2")


LOSSES = ("train/loss", "train/loss_epoch", "val/loss", "val/accuracy", "val/exact_match", "train/gradient_norm")


def test_the_default_run_logs_at_optimiser_updates(finished_runs: Callable[..., Path]):
    logged = columns(finished_runs())
    every_ten = [*range(0, 360, 10), 359]
    for name in ("train/loss", "train/loss_mean", "learning_rate"):
        assert list(logged[name]) == every_ten
    for name in ("val/loss", "val/accuracy", "val/exact_match"):
        assert list(logged[name]) == [0, 120, 240, 360]
    assert list(logged["train/loss_epoch"]) == [120, 240, 360]


def test_the_default_run_learns_to_copy(finished_runs: Callable[..., Path]):
    losses = list(columns(finished_runs())["train/loss_epoch"].values())
    assert math.log(65) > losses[0] > 3
    assert losses[2] < 0.05
    assert result(finished_runs())["metrics"]["val/exact_match"] > 0.95
    assert result(finished_runs())["metrics"]["start/val/loss"] == pytest.approx(math.log(65), abs=0.1)


@pytest.mark.parametrize(
    ("max_steps", "max_epochs", "validated"),
    [(30, 9, [0, 20, 30]), (40, 9, [0, 20, 40]), (7, 9, [0, 7]), (50, 1, [0, 20, 40, 50]), (-1, 2, [0, 20, 40])],
)
def test_a_limit_of_steps_validates_and_saves_where_it_ends(
    max_steps: int, max_epochs: int, validated: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "poslab")
    train(tmp_path, *SMALL, *QUIET, f"trainer.max_steps={max_steps}", f"trainer.max_epochs={max_epochs}")
    assert list(columns(tmp_path)["val/loss"]) == validated
    assert checkpoint(tmp_path, "last")["global_step"] == validated[-1]
    assert weights(tmp_path, "best").keys() == weights(tmp_path).keys()
    assert result(tmp_path)["status"] == "completed"
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("epoch ")]
    assert len(lines) == len(validated) - 1
    assert f"step {validated[-1]} of {validated[-1]}:" in lines[-1]


def test_the_last_checkpoint_is_of_the_last_step_even_when_it_is_not_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # The loss is at its best where no other number is at its highest or lowest.
    scripted = iter([(5.0, 0.2), (1.0, 0.5), (2.0, 0.9), (3.0, 0.1)])

    def rising(logits: torch.Tensor, targets: torch.Tensor) -> Score:
        real = score(logits, targets)
        loss, accuracy = next(scripted)
        right = (real.tokens * accuracy).long()
        return real._replace(loss_sum=real.tokens.double() * loss, tokens_right=right)

    monkeypatch.setattr(poslab.training.learner, "score", rising)
    train(tmp_path, *SMALL, *QUIET, "data.val_batch_size=50", "trainer.max_epochs=3")
    assert columns(tmp_path)["val/loss"] == {0: 5.0, 20: 1.0, 40: 2.0, 60: 3.0}
    assert checkpoint(tmp_path, "best")["global_step"] == 20
    assert checkpoint(tmp_path, "last")["global_step"] == 60
    metrics = result(tmp_path)["metrics"]
    assert (metrics["best/val/loss"], metrics["val/loss"], metrics["start/val/loss"]) == (1.0, 3.0, 5.0)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with everything that draws random numbers: dropout and every diagnostic."""
    return train(tmp_path_factory.mktemp("short"), *SHORT)


def test_the_same_seed_gives_the_same_table(short: Path, tmp_path: Path):
    torch.rand(1000)
    train(tmp_path, *SHORT)
    assert (tmp_path / "metrics.csv").read_bytes() == (short / "metrics.csv").read_bytes()


def test_another_seed_gives_other_numbers(short: Path, tmp_path: Path):
    train(tmp_path, *SHORT, *QUIET, "seed=1")
    one, other = columns(short), columns(tmp_path)
    for name in ("train/loss", "val/loss"):
        assert all(one[name][step] != other[name][step] for step in one[name])


@pytest.mark.parametrize(
    "overrides",
    [QUIET, ("diagnostics=none",), ("diagnostics=heads",), (*QUIET, "data.num_workers=1"), (*QUIET, "trainer=cpu")],
    ids=" ".join,
)
def test_looking_does_not_change_the_run(overrides: tuple[str, ...], short: Path, tmp_path: Path):
    train(tmp_path, *SHORT, *overrides)
    one, other = columns(short), columns(tmp_path)
    assert {name: one[name] for name in LOSSES} == {name: other[name] for name in LOSSES}
    for name, value in weights(tmp_path).items():
        assert torch.equal(value, weights(short)[name])


def test_dropout_is_really_on_while_training_and_off_while_validating(short: Path, tmp_path: Path):
    train(tmp_path, *SHORT, *QUIET, "model.dropout=0")
    with_dropout, without = columns(short), columns(tmp_path)
    assert with_dropout["train/loss"][0] != without["train/loss"][0]
    assert with_dropout["val/loss"][0] == without["val/loss"][0]


def test_without_a_dashboard_the_files_are_there_all_the_same(short: Path, tmp_path: Path):
    train(tmp_path, *SHORT, "logger=none")
    assert (tmp_path / "metrics.csv").read_bytes() == (short / "metrics.csv").read_bytes()
    assert result(tmp_path)["status"] == "completed"
    assert "val/loss" in columns(tmp_path)
    assert {path.name for path in (tmp_path / "figures").iterdir()} >= {"heads_layer_0.png", "positions_table.png"}
    assert not list(tmp_path.glob("events.out.tfevents.*"))


@pytest.mark.parametrize("logger", ["none", "tensorboard"])
def test_pictures_and_numbers_are_kept_with_and_without_a_dashboard(logger: str, tmp_path: Path):
    train(tmp_path, *SMALL, "trainer.max_steps=2", "trainer.log_every_n_steps=1", f"logger={logger}")
    assert (tmp_path / "figures" / "heads_layer_0.png").stat().st_size > 1000
    assert {"train/loss", "val/loss", "parameters/total"} <= columns(tmp_path).keys()
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == (logger == "tensorboard")


def test_bf16_trains_close_to_fp32(tmp_path: Path):
    for precision in ("32", "bf16"):
        train(tmp_path / precision, *SMALL, *QUIET, f"trainer.precision={precision}", "trainer.log_every_n_steps=1")
    full, half = columns(tmp_path / "32"), columns(tmp_path / "bf16")
    for name in ("train/loss", "val/loss"):
        assert all(math.isfinite(value) for value in half[name].values())
        assert half[name] == pytest.approx(full[name], abs=0.05)
        assert half[name] != full[name], "bf16 was not used"
    assert {value.dtype for value in weights(tmp_path / "bf16").values()} == {torch.float32}
