"""The test split: scored by the best weights, once, at the end of a run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import poslab.training.learner
from poslab.data.module import SeedData
from poslab.evaluation.metrics import Score, score, score_all
from poslab.trained import load
from poslab.training.checkpoints import Checkpoints
from support.event_files import read, steps
from support.one_model_runs import QUIET, SMALL, checkpoint, columns, result
from support.runs import said, train
from support.stopping import stopped_at

SCORES = ("loss", "accuracy", "exact_match")
TOO_FAST = ("model=transformer", "optimizer.lr=0.2", "trainer.max_epochs=4", "data.steps_per_epoch=10")
"""The best validation is not the last."""


def by_hand(folder: Path, which: str = "best") -> dict[str, float]:
    """Scores of a checkpoint on 50 rows that neither training nor validation sees."""
    job, task, model = load(folder, which)
    data = SeedData(task, job.data, job.seed, model.vocab_size)
    return score_all(model, data.examples(50, task.lengths, split="test").batches).means()


def test_the_best_weights_are_scored_on_rows_of_their_own(finished_runs: Callable[..., Path]) -> None:
    folder = finished_runs(*SMALL, *TOO_FAST, "diagnostics=none", "seed=1")
    losses = columns(folder)["val/loss"]
    best = min((step for step in losses if step), key=losses.__getitem__)
    assert checkpoint(folder, "best")["global_step"] == best < 40, "or best and last are the same"
    wanted = by_hand(folder)
    assert wanted["loss"] != pytest.approx(by_hand(folder, "last")["loss"], rel=1e-3)
    for name in SCORES:
        assert result(folder)["metrics"][f"test/{name}"] == pytest.approx(wanted[name], rel=1e-6)
        assert columns(folder)[f"test/{name}"] == {40: result(folder)["metrics"][f"test/{name}"]}
        assert steps(read(folder), f"test/{name}") == [40]
    job, task, _ = load(folder)
    sets = SeedData(task, job.data, job.seed, task.vocab_size)
    assert len(sets.test_set().batches) == len(sets.validation.batches) == 2
    rows = [{tuple(row) for batch in one.batches for row in batch.tokens.tolist()} for one in
            (sets.test_set(), sets.validation)]  # fmt: skip
    assert not rows[0] & rows[1]


def test_best_numbers_are_those_of_the_best_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The untrained model has the lowest loss and the highest accuracy of all.
    scripted = iter([(0.5, 1.0), (2.0, 0.9), (1.0, 0.5), (1.0, 0.8), (3.0, 0.1)])

    def given(logits: torch.Tensor, targets: torch.Tensor) -> Score:
        real = score(logits, targets)
        loss, share = next(scripted)
        return real._replace(loss_sum=real.tokens.double() * loss, tokens_right=(real.tokens * share).long())

    monkeypatch.setattr(poslab.training.learner, "score", given)
    train(tmp_path, *SMALL, *QUIET, "data.val_batch_size=50", "trainer.max_epochs=4")
    metrics = result(tmp_path)["metrics"]
    assert checkpoint(tmp_path, "best")["global_step"] == 40, "the first of two that are equal"
    assert (metrics["start/val/loss"], metrics["best/val/loss"], metrics["best/val/accuracy"]) == (0.5, 1.0, 0.5)


def test_each_replica_is_scored_by_its_own_best_weights(tmp_path: Path) -> None:
    options = (*SMALL, *TOO_FAST, *QUIET)
    folder = train(tmp_path / "both", *options, "seeds=2")
    steps_of_best = set()
    found = []
    for seed in (0, 1):
        replica = folder / f"copies/seed{seed}"
        metrics = result(replica)["metrics"]
        wanted = by_hand(replica)
        assert {name: metrics[f"test/{name}"] for name in SCORES} == pytest.approx(wanted, rel=1e-6)
        best = checkpoint(replica, "best")["global_step"]
        steps_of_best.add(best)
        assert metrics["best/val/loss"] == columns(replica)["val/loss"][best]
        found.append(metrics["test/loss"])
    assert len(steps_of_best) == 2, "or one best step for both would pass"
    assert result(folder)["metrics"]["test/loss"] == pytest.approx(sum(found) / 2)
    assert columns(folder)["test/loss"] == {40: pytest.approx(sum(found) / 2)}


@pytest.mark.parametrize("last_update", [False, True])
def test_a_resumed_run_has_the_same_scores(
    last_update: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_runs: Callable[..., Path]
) -> None:
    options = (*SMALL, *TOO_FAST, "diagnostics=none", "seed=1")
    whole = finished_runs(*options)
    folder = tmp_path / "run"
    if last_update:
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, "on_fit_end", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(SystemExit):
                train(folder, *options)
    else:
        stopped_at(folder, 25, monkeypatch, *options)
    assert not any(name.startswith("test/") for name in result(folder)["metrics"])
    train(folder, *options, "resume=auto")
    assert (folder / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    for part in ("metrics", "validation"):
        assert result(folder)[part] == result(whole)[part]
    assert steps(read(folder), "test/loss") == [40]


def test_without_the_best_checkpoint_there_are_no_scores_and_the_run_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = Checkpoints.on_fit_end

    def removed(self: Checkpoints, *arguments: object) -> None:
        (tmp_path / "checkpoints/best.ckpt").unlink()
        real(self, *arguments)

    monkeypatch.setattr(Checkpoints, "on_fit_end", removed)
    train(tmp_path, *SMALL, *QUIET)
    assert result(tmp_path)["status"] == "completed"
    assert not any(name.startswith("test/") for name in result(tmp_path)["metrics"])
    assert said(caplog) == ["no test scores: no checkpoint holds the best weights, those of step 40"]


def test_validation_rows_are_in_the_result(finished_runs: Callable[..., Path], tmp_path: Path) -> None:
    plain = result(finished_runs(*SMALL, *TOO_FAST, "diagnostics=none", "seed=1"))
    assert plain["validation"] == {"rows": 50, "distinct_rows": 50, "seen_in_training": 0.0}
    folder = train(tmp_path / "run", *SMALL, *QUIET, "task=repeat", "seeds=2")
    assert result(folder)["validation"] is None
    job, task, model = load(folder / "copies/seed1")
    wanted = SeedData(task, job.data, 1, model.vocab_size).validation_rows(40)._asdict()
    assert result(folder / "copies/seed1")["validation"] == wanted
    assert wanted["seen_in_training"] == 1
    assert json.loads((folder / "result.json").read_text())["metrics"]["copies/completed"] == 2
