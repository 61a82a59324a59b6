"""``trainer.accumulate_batches=n``: one update by the mean gradient of n batches, as by one batch n times as large."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from poslab.build import build_model, build_task
from poslab.config.schema import checked
from poslab.data.module import SeedData
from poslab.data.stream import BatchStream
from poslab.runs.result import stored_result
from support.configs import compose, refusal
from support.one_model_runs import QUIET, columns, weights
from support.replica_runs import rows
from support.runs import train
from support.stopping import TINY, Wholes, assert_same, content, told_to_stop

SMALL = ("data.steps_per_epoch=10", "data.val_examples=50", "trainer.max_epochs=2", "trainer.log_every_n_steps=1")
THREE = "trainer.accumulate_batches=3"


@pytest.mark.parametrize("clip", [None, 0.1])
def test_it_is_what_a_plain_loop_with_one_large_batch_computes(clip: float | None, tmp_path: Path) -> None:
    overrides = (*SMALL, *QUIET, "seed=5", f"trainer.gradient_clip_norm={'null' if clip is None else clip}")
    train(tmp_path, *overrides, THREE)
    job = checked(compose(*overrides))
    torch.manual_seed(5)
    model = build_model(job, build_task(job))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, betas=(0.9, 0.999))
    batches = BatchStream(build_task(job), 5, "train", 16, model.vocab_size)
    losses, norms = [], []
    for step in range(20):
        parts = zip(*(batches.batch(3 * step + index) for index in range(3)), strict=True)
        tokens, targets = (torch.cat(part) for part in parts)
        assert tokens.shape[0] == 48
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).transpose(1, 2), targets, ignore_index=-100)
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip or 1e9).item())
        optimizer.step()
    logged = columns(tmp_path)
    assert logged["train/loss"] == pytest.approx(dict(enumerate(losses)), rel=1e-4)
    assert logged["train/gradient_norm"] == pytest.approx(dict(enumerate(norms)), rel=1e-3)
    # A step stays an update: the epochs and the checkpoints count updates.
    assert list(logged["val/loss"]) == [0, 10, 20]
    assert logged["train/loss_epoch"] == pytest.approx({10: sum(losses[:10]) / 10, 20: sum(losses[10:]) / 10}, rel=1e-4)
    assert content(tmp_path)["global_step"] == 20
    wanted = model.state_dict()
    for name, value in weights(tmp_path).items():
        if name.endswith("qkv_proj.bias"):
            # A bias of the keys moves no weight of the softmax: its gradient is rounding.
            value, wanted[name] = (part.view(3, -1)[[0, 2]] for part in (value, wanted[name]))
        torch.testing.assert_close(value, wanted[name], rtol=1e-3, atol=1e-4)


def test_replicas_accumulate_as_each_would_alone(finished_runs: Callable[..., Path]) -> None:
    options = (*SMALL, *QUIET, THREE, "task.min_length=2", "trainer.gradient_clip_norm=0.2")
    bundle, alone = finished_runs(*options, "seeds=2"), finished_runs(*options, "seed=1")
    for one, other in zip(rows(bundle / "copies/seed1"), rows(alone), strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4)
    results = [stored_result(folder) for folder in (bundle / "copies/seed1", alone)]
    assert results[0]["batches_by_length"] == results[1]["batches_by_length"]
    assert sum(results[0]["batches_by_length"].values()) == 60


@pytest.mark.parametrize("more", [("model.dropout=0.1", "data.num_workers=1"), ("seeds=2", "task.min_length=2")])
def test_it_goes_on_within_an_epoch_as_if_nothing_had_happened(
    more: tuple[str, ...], whole: Wholes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told_to_stop(tmp_path / "run", 5, monkeypatch, THREE, *more)
    assert content(tmp_path / "run")["global_step"] == 5
    train(tmp_path / "run", *TINY, THREE, *more, "resume=auto")
    assert_same(tmp_path / "run", whole(THREE, *more))


def test_all_batches_count_where_rows_of_validation_and_training_are_compared(tmp_path: Path) -> None:
    options = (*TINY, "logger=none", "task=count", "data.batch_size=2", "trainer.max_steps=5")
    result = stored_result(train(tmp_path / "run", *options, THREE))
    job = checked(compose(*options))
    task = build_task(job)
    assert result["validation"] == SeedData(task, job.data, 0, task.vocab_size).validation_rows(15)._asdict()


@pytest.mark.parametrize("value", ["0", "100000"])
def test_what_cannot_be_is_refused(value: str, tmp_path: Path) -> None:
    assert f"trainer.accumulate_batches={value} must be at" in refusal(
        tmp_path / "run", f"trainer.accumulate_batches={value}"
    )
