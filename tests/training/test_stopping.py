"""``trainer.stop_when``: a run, and each replica of a run, ends where its validation has reached what was asked."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from poslab.errors import ConfigError, DivergedError
from poslab.runs.result import stored_result
from poslab.training import checkpoints
from poslab.training.stopping import stop_condition
from support.configs import compose, refusal
from support.replica_runs import lose, rows, weights
from support.runs import train
from support.stopping import same, stopped_at

# With these, the losses of seeds 0, 1 and 2 rise above 4.25 at steps 24, 18 and 30.
OPTIONS = (
    "data.batch_size=4",
    "data.steps_per_epoch=6",
    "data.val_examples=10",
    "trainer.max_epochs=6",
    "trainer.log_every_n_steps=4",
    "optimizer.lr=0.02",
    # It looks at the end only.
    "diagnostics=[lengths]",
    "diagnostics.lengths.lengths=[6]",
    "diagnostics.lengths.n_examples=8",
    "logger=none",
)
STOP = "trainer.stop_when='val/loss>4.25'"
ENDS = {0: 24, 1: 18, 2: 30}


@pytest.fixture(scope="module")
def bundle(finished_runs: Callable[..., Path]) -> Path:
    return finished_runs(*OPTIONS, STOP, "seeds=3")


@pytest.mark.parametrize("seed", ENDS)
def test_a_replica_ends_where_its_run_alone_does(seed: int, bundle: Path, finished_runs: Callable[..., Path]) -> None:
    alone, own = finished_runs(*OPTIONS, STOP, f"seed={seed}"), bundle / f"copies/seed{seed}"
    assert rows(alone)[-1]["step"] == ENDS[seed]
    for one, other in zip(rows(own), rows(alone), strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4)
    found, wanted = stored_result(own), stored_result(alone)
    assert found["metrics"] == pytest.approx(wanted["metrics"], rel=1e-3, abs=1e-4)
    for key in ("status", "error", "batches_by_length", "validation", "seed"):
        assert found[key] == wanted[key], key
    assert {"test/loss", "length/6/accuracy", "train/loss"} <= found["metrics"].keys()


def test_the_last_step_of_a_run_that_stops_is_logged(finished_runs: Callable[..., Path]) -> None:
    logged = {row["step"]: row for row in rows(finished_runs(*OPTIONS, STOP, "seed=1")) if "train/loss_mean" in row}
    whole = rows(finished_runs(*OPTIONS, "trainer.log_every_n_steps=1", "seed=1", "trainer.max_epochs=3"))
    losses = [row["train/loss"] for row in whole if "train/loss" in row]
    assert list(logged) == [0, 4, 8, 12, 16, 17]
    assert (logged[17]["train/loss"], logged[17]["train/loss_mean"]) == (losses[17], losses[17])


def test_a_stopped_replica_is_frozen_bit_for_bit_and_the_run_ends_with_the_last(
    bundle: Path, finished_runs: Callable[..., Path]
) -> None:
    until_then = weights(finished_runs(*OPTIONS, "seeds=3", "trainer.max_epochs=3"))
    at_the_end, own = weights(bundle), weights(bundle / "copies/seed1")
    assert all(torch.equal(at_the_end[name][1], until_then[name][1]) for name in at_the_end)
    assert all(torch.equal(value, own[name.replace("stacked.", "")]) for name, value in first(at_the_end, 1).items())
    result = stored_result(bundle)
    assert (result["status"], result["metrics"]["copies/completed"]) == ("completed", 3)
    assert rows(bundle)[-1]["step"] == 30
    # The means count a replica that was stopped with its last value.
    last = [stored_result(bundle / f"copies/seed{seed}")["metrics"] for seed in ENDS]
    for name in ("val/loss", "train/loss", "test/loss"):
        mean = np.mean([metrics[name] for metrics in last])
        assert [row[name] for row in rows(bundle) if name in row][-1] == pytest.approx(mean)
        assert result["metrics"][name] == pytest.approx(mean)


def first(stacked: dict[str, torch.Tensor], replica: int) -> dict[str, torch.Tensor]:
    return {name: value[replica] for name, value in stacked.items()}


@pytest.mark.parametrize("at", ["in a step", "at the end"])
def test_a_resume_knows_who_has_stopped(at: str, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    options = (*OPTIONS, STOP, "seeds=3")
    with monkeypatch.context() as patch:
        if at == "in a step":
            patch.setattr("poslab.training.stack.losses", after(21, interrupt))
        else:
            patch.setattr(checkpoints, "log_test_scores", interrupt)
        with pytest.raises(SystemExit):
            train(tmp_path / "run", *options)
    train(tmp_path / "run", *options, "resume=auto")
    for part in (".", *(f"copies/seed{seed}" for seed in ENDS)):
        ours, theirs = tmp_path / "run" / part, bundle / part
        assert (ours / "metrics.csv").read_bytes() == (theirs / "metrics.csv").read_bytes()
        assert same(weights(ours), weights(theirs))
        assert stored_result(ours)["metrics"] == stored_result(theirs)["metrics"]


def after(calls: int, then: Callable[..., None]) -> Callable[..., torch.Tensor]:
    from poslab.training.stack import losses

    left = iter(range(calls))
    return lambda *arguments: losses(*arguments) if next(left, None) is not None else then()  # type: ignore[return-value]


def test_a_run_that_has_stopped_is_complete(
    finished_runs: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = finished_runs(*OPTIONS, STOP, "seed=1")
    with caplog.at_level("INFO"):
        train(folder, *OPTIONS, STOP, "seed=1", "resume=auto")
    assert "is complete already" in caplog.text
    with pytest.raises(ConfigError, match=r"trainer\.stop_when was val/loss>4\.25 and is None"):
        train(folder, *OPTIONS, "seed=1", "resume=auto")


def test_it_stops_after_an_interruption_too(
    finished_runs: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stopped_at(tmp_path / "run", 15, monkeypatch, *OPTIONS, STOP, "seed=1")
    train(folder, *OPTIONS, STOP, "seed=1", "resume=auto")
    whole = finished_runs(*OPTIONS, STOP, "seed=1")
    assert (folder / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()


def test_where_all_others_diverge_what_was_stopped_has_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bundle: Path
) -> None:
    lose(monkeypatch, (0, 2), 20)
    with pytest.raises(DivergedError, match="2 of 3 replicas diverged; seed 0: train/loss is nan at step 20"):
        train(tmp_path / "run", *OPTIONS, STOP, "seeds=3")
    statuses = [stored_result(tmp_path / f"run/copies/seed{seed}")["status"] for seed in ENDS]
    assert statuses == ["diverged", "completed", "diverged"]
    own, undisturbed = (folder / "copies/seed1/metrics.csv" for folder in (tmp_path / "run", bundle))
    assert own.read_bytes() == undisturbed.read_bytes()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("val/exact_mach>=1", "a validation has no metric 'val/exact_mach'"),
        ("train/loss<1", "a validation has no metric 'train/loss'"),
        ("val/loss", "is not a metric, one of >=, <=, >, <, and a number"),
        ("val/loss==1", "is not a metric"),
        ("val/loss<nan", "is not a metric"),
        ("val/loss<1 or val/accuracy>1", "is not a metric"),
        ("", "is not a metric"),
    ],
)
def test_another_name_or_form_is_refused_with_the_metrics(text: str, said: str, tmp_path: Path) -> None:
    line = refusal(tmp_path / "run", f"trainer.stop_when='{text}'")
    assert said in line
    assert "val/loss, val/accuracy, val/exact_match" in line
    assert "\n" not in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "passes", "fails"),
    [
        ("val/loss<0.1", 0.09, 0.1),
        ("val/loss <= 1e-1", 0.1, 0.11),
        ("val/accuracy>0", 1e-9, 0.0),
        ("val/loss>=1", 1, 0.9),
    ],
)
def test_a_condition(text: str, passes: float, fails: float) -> None:
    condition = stop_condition(text)
    assert condition is not None
    assert condition.holds(passes)
    assert not condition.holds(fails)
    assert not condition.holds(float("nan"))


def test_it_is_read_as_typed() -> None:
    assert compose(STOP).trainer.stop_when == "val/loss>4.25"
    assert stop_condition(compose().trainer.stop_when) is None
