"""Batches are addressed by (seed, split, step): nothing else decides what is in them."""

import itertools
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import poslab.training.learner
from poslab.config.schema import DataConfig
from poslab.data.module import SeedData, TaskData
from poslab.data.stream import BatchStream, FixedBatches, ReplicaBatch, ReplicaStream, StepSampler, TensorBatch
from poslab.errors import ConfigError
from poslab.tasks.base import Batch
from poslab.tasks.copy import CopyTask
from support.configs import compose
from support.runs import train

TASK = CopyTask(n_symbols=20, length=4)
SIZES = {"batch_size": 6, "steps_per_epoch": 4, "val_examples": 20, "val_batch_size": 8, "num_workers": 0}
some = settings(max_examples=30, deadline=None, derandomize=True)


def config(**changed: int) -> DataConfig:
    return DataConfig(**{**SIZES, **changed})


def make(*seeds: int, **changed: int) -> TaskData:
    return TaskData(TASK, config(**changed), seeds or (3,), TASK.vocab_size)


def stream(seed: int = 3, split: str = "train") -> BatchStream:
    return BatchStream(TASK, seed, split, SIZES["batch_size"], TASK.vocab_size)


def same(one: ReplicaBatch | TensorBatch, other: ReplicaBatch | TensorBatch) -> bool:
    """Whether two batches of one seed hold the same rows."""
    return all(torch.equal(a.flatten(0, -2), b.flatten(0, -2)) for a, b in zip(one[:2], other[:2], strict=True))


def epochs(data: TaskData, n: int, updates: int = 0) -> list[ReplicaBatch]:
    """The batches of ``n`` epochs for a trainer that has made so many updates before."""
    data.trainer = SimpleNamespace(world_size=1, global_rank=0, global_step=updates)
    loader = data.train_dataloader()
    met = []
    for _ in range(n):
        for batch in loader:
            met.append(batch)
            data.trainer.global_step += 1
    return met


class Broken(CopyTask):
    """A task that puts one wrong number into a batch."""

    def __init__(self, tokens: int | None = None, targets: int | None = None) -> None:
        super().__init__(n_symbols=20, length=4)
        self.wrong = (tokens, targets)

    def sample_at(self, rng: np.random.Generator, batch_size: int, length: int) -> Batch:
        batch = super().sample_at(rng, batch_size, length)
        for array, wrong in zip(batch, self.wrong, strict=True):
            if wrong is not None:
                array[-1, -1] = wrong
        return batch


def test_any_batch_made_again_alone_equals_the_one_met_in_order():
    met = epochs(make(), 3)
    assert len(met) == 12
    assert met[0].tokens.shape == met[0].targets.shape == (1, 6, TASK.seq_len)
    assert met[0].tokens.dtype == met[0].targets.dtype == torch.int64
    for step in reversed(range(12)):
        assert same(met[step], stream().batch(step))


def test_a_run_that_goes_on_meets_the_batches_it_would_have_met():
    for updates, left in ((8, 4), (5, 3), (7, 1)):
        met = epochs(make(), 1, updates=updates)
        assert len(met) == left, "what is left of the epoch"
        assert all(same(batch, stream().batch(updates + i)) for i, batch in enumerate(met))


def test_seeds_splits_and_steps_give_different_batches():
    seen = {
        stream(seed, split).batch(step).tokens.numpy().tobytes()
        for seed, split, step in itertools.product(range(4), ("train", "val", "test"), (0, 1, 2, 3, 8, 256, 10**6))
    }
    assert len(seen) == 4 * 3 * 7


def test_batches_are_the_same_for_any_number_of_workers():
    alone, helped = epochs(make(), 2), epochs(make(num_workers=2), 2)
    assert len(alone) == len(helped) == 8
    assert all(same(one, other) for one, other in zip(alone, helped, strict=True))


# The runtime type checks of the tests draw from `random` which item of a list they look at.
@pytest.mark.usefixtures("as_shipped")
def test_global_random_states_neither_decide_the_batches_nor_are_touched():
    def dice() -> tuple:
        return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002

    torch.manual_seed(1)
    before = dice()
    data = make()
    one = [*epochs(data, 1), *data.val_dataloader()]
    assert dice() == before
    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    random.seed(2)
    data = make()
    assert all(same(a, b) for a, b in zip(one, [*epochs(data, 1), *data.val_dataloader()], strict=True))


@some
@given(world_size=st.integers(1, 7), step=st.integers(0, 1000))
def test_the_ranks_rows_together_are_the_whole_batch(world_size: int, step: int):
    # Joined in order they are the whole, so they are disjoint too; 7 ranks for 6 rows leave one with none.
    parts = [ReplicaStream([stream()], rank=rank, world_size=world_size)[step] for rank in range(world_size)]
    joined = TensorBatch(*(torch.cat([part[index][0] for part in parts]) for index in range(2)))
    assert same(joined, stream().batch(step))


@some
@given(n_examples=st.integers(1, 40), batch_size=st.integers(1, 16))
def test_the_validation_set_has_exactly_its_examples(n_examples: int, batch_size: int):
    batches = list(make(val_examples=n_examples, val_batch_size=batch_size).val_dataloader())
    assert sum(batch.tokens.shape[1] for batch in batches) == n_examples
    assert all(1 <= batch.tokens.shape[1] == batch.targets.shape[1] <= batch_size for batch in batches)
    block = BatchStream(TASK, 3, "val", 256, TASK.vocab_size).batch(0)
    joined = TensorBatch(*(torch.cat([batch[index][0] for batch in batches]) for index in range(2)))
    assert same(joined, TensorBatch(*(part[:n_examples] for part in block)))


@pytest.mark.parametrize("batch_size", [1, 7, 100, 256, 1000])
def test_validation_rows_do_not_depend_on_their_batch_size(batch_size: int):
    """Of each length its share of the rows, in blocks of 256 that are numbered through."""
    task = CopyTask(n_symbols=20, length=4, min_length=3)
    sizes = config(val_examples=701, val_batch_size=batch_size)
    batches = SeedData(task, sizes, 3, task.vocab_size).validation.batches
    blocks = BatchStream(task, 3, "val", 256, task.vocab_size)
    for length, n_rows, steps in ((3, 351, (0, 1)), (4, 350, (2, 3))):
        wanted = torch.cat([blocks.batch(step, length).tokens for step in steps])[:n_rows]
        of_length = [batch.tokens for batch in batches if batch.tokens.shape[1] == 2 * length]
        assert torch.cat(of_length).equal(wanted)
        assert [len(tokens) for tokens in of_length[:-1]] == [batch_size] * (len(of_length) - 1)
        assert len(of_length[-1]) <= batch_size


@pytest.mark.parametrize(("seq_len", "n_examples"), [(1, 512), (48, 512), (49, 501), (256, 96), (4096, 64)])
def test_a_validation_set_of_no_given_size_is_bounded_by_its_tokens(seq_len: int, n_examples: int):
    assert DataConfig(**{**SIZES, "val_examples": None}).n_val_examples(seq_len) == n_examples
    assert DataConfig(**{**SIZES, "val_examples": 700}).n_val_examples(seq_len) == 700


def test_the_validation_set_is_made_once_and_stays(monkeypatch: pytest.MonkeyPatch):
    data = make()
    first = list(data.val_dataloader())
    monkeypatch.setattr(TASK, "sample", None)  # nothing is sampled any more
    again = list(data.val_dataloader())
    assert len(first) == 3
    assert all(same(one, other) for one, other in zip(first, again, strict=True))
    assert isinstance(data.replicas[0].validation, FixedBatches)


def test_the_probe_is_the_first_validation_row_with_its_labels_and_answers():
    data = SeedData(TASK, config(), 3, TASK.vocab_size)
    row = data.validation[0].tokens[0]
    assert data.probe.tokens.tolist() == [row.tolist()]
    assert data.probe.labels == [TASK.token_label(token) for token in row.tolist()]
    assert data.probe.labels[4] == "SEP"
    np.testing.assert_array_equal(data.probe.answer_cells, TASK.answer_cells(row.numpy()))


def test_the_sampler_goes_on_from_epoch_to_epoch():
    met: list[int] = []
    sampler = StepSampler(5, lambda: len(met))
    assert len(sampler) == 5
    for _ in range(3):
        met += list(sampler)
    assert met == list(range(15))


@pytest.mark.parametrize("wrong", [99, 21, -1])
def test_a_token_outside_the_vocabulary_is_refused_with_the_number(wrong: int):
    for split in ("train", "val"):
        with pytest.raises(ValueError, match=rf"Broken.* {wrong}, .*\[0, 21\)"):
            BatchStream(Broken(tokens=wrong), 0, split, 4, 21).batch(0)


@pytest.mark.parametrize("wrong", [99, 21, -5])
def test_a_target_outside_the_vocabulary_is_refused_with_the_number(wrong: int):
    with pytest.raises(ValueError, match=rf"{wrong}, .*\[0, 21\)"):
        BatchStream(Broken(targets=wrong), 0, "train", 4, 21).batch(0)


def test_a_wrong_token_in_another_rank_s_rows_is_refused_on_every_rank():
    # Else one process would stop and the others wait for it.
    for rank in range(2):
        with pytest.raises(ValueError, match="99"):
            ReplicaStream([BatchStream(Broken(tokens=99), 0, "train", 4, 21)], rank=rank, world_size=2)[0]


def test_a_wrong_token_stops_the_run_before_a_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def sample_at(self: CopyTask, rng: np.random.Generator, batch_size: int, length: int) -> Batch:
        return Batch(np.full((batch_size, 12), 77), np.full((batch_size, 12), 1))

    monkeypatch.setattr(CopyTask, "sample_at", sample_at)
    with pytest.raises(ValueError, match=r"77, outside the vocabulary \[0, 65\)"):
        train(tmp_path, "diagnostics=none", "logger=none")
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_meets_the_steps_in_order_across_epochs(workers: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    met = []

    def keep(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        met.append(targets)
        return real(logits, targets)

    real = poslab.training.learner.token_loss
    monkeypatch.setattr(poslab.training.learner, "token_loss", keep)
    sizes = ("data.steps_per_epoch=3", "trainer.max_epochs=3", "data.val_examples=8", f"data.num_workers={workers}")
    train(tmp_path, "diagnostics=none", "logger=none", "seed=9", "trainer.log_every_n_steps=1", *sizes)
    source = BatchStream(CopyTask(), 9, "train", 16, 65)
    assert len(met) == 9
    assert all(torch.equal(targets, source.batch(step).targets) for step, targets in enumerate(met))


def test_a_batch_that_the_devices_cannot_share_is_refused():
    data = make()
    data.trainer = SimpleNamespace(world_size=4, global_rank=0)
    with pytest.raises(ConfigError, match=r"data\.batch_size=6 .*4 devices"):
        data.train_dataloader()


def test_the_model_s_vocabulary_is_the_task_s_unless_given():
    from poslab.build import build_model, build_task
    from poslab.config.schema import checked

    job = checked(compose())
    assert build_model(job, build_task(job)).vocab_size == 65
    job = checked(compose("model.vocab_size=80"))
    assert build_model(job, build_task(job)).vocab_size == 80


def test_replicas_stand_side_by_side_each_with_the_batches_of_its_seed():
    data = make(3, 4)
    for step, batch in enumerate(epochs(data, 1)):
        assert list(batch.seq_lens) == [TASK.seq_len, TASK.seq_len]
        for index, seed in enumerate((3, 4)):
            alone = stream(seed).batch(step)
            assert torch.equal(batch.tokens[index], alone.tokens)
            assert torch.equal(batch.targets[index], alone.targets)
    for index, seed in enumerate((3, 4)):
        own = SeedData(TASK, config(), seed, TASK.vocab_size).validation
        pairs = zip(data.val_dataloader(), own, strict=False)
        assert all(torch.equal(both.tokens[index], one.tokens) for both, one in pairs)
