"""Which rows are the same, which are held out of training, and how many validation rows training has met."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from poslab.build import build_task
from poslab.config.identity import identity, job_key
from poslab.config.schema import DataConfig, checked
from poslab.data.module import SeedData, TaskData
from poslab.data.rows import held_out, row_hashes
from poslab.data.stream import BatchStream, ReplicaStream
from poslab.errors import ConfigError
from poslab.preflight.checks import check_buildable
from poslab.tasks import Task
from poslab.tasks.copy import CopyTask
from poslab.tasks.count import CountTask
from poslab.tasks.repeat import RepeatTask
from support.configs import compose

SIZES = {"batch_size": 16, "steps_per_epoch": 4, "val_examples": 300, "val_batch_size": 64, "num_workers": 0}
SMALL_SPACE = CopyTask(n_symbols=4, length=4, min_length=3)
"""64 different rows of length 3 and 256 of length 4."""


def data(task: Task, seed: int = 0, **changed: float) -> SeedData:
    return SeedData(task, DataConfig(**{**SIZES, **changed}), seed, task.vocab_size)


def test_rows_have_the_same_hash_if_and_only_if_they_are_equal() -> None:
    rows = np.array(list(itertools.product(range(6), repeat=5)))
    hashes = row_hashes(rows)
    assert len(np.unique(hashes)) == len(rows) == 6**5
    np.testing.assert_array_equal(row_hashes(rows[::-1].copy())[::-1], hashes)
    assert not np.isin(row_hashes(rows[:, :4]), hashes).any(), "a part of a row is another row"


def test_hashes_stay_what_they_are_in_every_process_and_version() -> None:
    """Written down once: with other hashes a resumed run would hold out other rows than it began with."""
    mask, factors, total = 2**64 - 1, [], 0

    def mixed(number: int) -> int:
        number = (number + 0x9E3779B97F4A7C15) & mask
        number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & mask
        number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & mask
        return number ^ (number >> 31)

    assert mixed(0) == 0xE220A8397B1DCDAF, "SplitMix64's first number for seed 0"
    for place, token in enumerate((7, 0, 64)):
        factors.append(mixed(place) | 1)
        total = (total + (token + 1) * factors[-1]) & mask
    assert row_hashes(np.array([[7, 0, 64]])).tolist() == [mixed(total)]


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
def test_the_share_of_held_out_rows_is_the_one_that_was_asked_for(share: float) -> None:
    rows = np.array(list(itertools.product(range(10), repeat=4)))
    assert held_out(rows, share).mean() == pytest.approx(share, abs=0.02)


def test_no_held_out_row_is_in_training_and_no_other_row_is_in_validation_or_test() -> None:
    for seed in (0, 1):
        of_seed = data(SMALL_SPACE, seed, holdout=0.25)
        stream = of_seed.training_stream()
        batches = [stream.batch(step).tokens.numpy() for step in range(100)]
        assert all(batch.shape[0] == 16 for batch in batches)
        assert not any(held_out(batch, 0.25).any() for batch in batches)
        assert {batch.shape[1] for batch in batches} == {6, 8}
        for examples in (of_seed.validation, of_seed.test_set(), of_seed.examples(40, [4])):
            assert all(held_out(batch.tokens.numpy(), 0.25).all() for batch in examples.batches)
        assert of_seed.validation_rows(100).seen_in_training == 0
    # Of 256 rows of length 4, those outside the share are trained on.
    met = {row.tobytes() for batch in batches if batch.shape[1] == 8 for row in batch}
    assert len(met) == pytest.approx(0.75 * 256, abs=20)


def test_held_out_batches_depend_on_seed_split_and_step_alone_and_keep_the_task_s_targets() -> None:
    one, again = (BatchStream(SMALL_SPACE, 3, "train", 16, 5, holdout=0.5) for _ in range(2))
    for step in (4, 0, 9):
        tokens, targets = one.batch(step)
        assert again.batch(step).tokens.equal(tokens)
        for row, target in zip(tokens.numpy(), targets.numpy(), strict=True):
            np.testing.assert_array_equal(SMALL_SPACE.deduce(row), target)


def test_a_length_that_training_never_has_is_scored_on_all_its_rows() -> None:
    without, held = data(SMALL_SPACE), data(SMALL_SPACE, holdout=0.1)
    assert held.examples(50, [7])[0].tokens.equal(without.examples(50, [7])[0].tokens)
    assert not held.examples(50, [4])[0].tokens.equal(without.examples(50, [4])[0].tokens)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("task=repeat", "task.n_symbols=2", "data.holdout=0.01"), r"too few rows for val: .* length 12, 0 were"),
        (("task=repeat", "task.n_symbols=2", "data.holdout=0.99"), r"too few rows for train: .* length 12, 0 were"),
        (("task=count", "task.n_symbols=3", "task.min_length=1", "data.holdout=0.1"), r"too few rows for val"),
    ],
)
def test_a_hold_out_that_leaves_no_rows_is_refused_in_one_line(overrides: tuple[str, ...], reason: str) -> None:
    job = checked(compose(*overrides))
    with pytest.raises(ConfigError, match=reason) as refusal:
        check_buildable(job, build_task(job))
    assert "\n" not in str(refusal.value)
    assert "data.holdout=null" in str(refusal.value)


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=f"data.holdout={share:.1f} must be a share"):
        checked(compose(f"data.holdout={share:.1f}"))


def test_without_a_hold_out_a_job_keeps_its_key() -> None:
    plain, held = checked(compose()), checked(compose("data.holdout=0.1"))
    assert not any(key.startswith("data.holdout") for key in identity({"data": {"holdout": None}}))
    assert job_key(plain) != job_key(held)


@pytest.mark.parametrize("task", [CountTask(26, 5, 1), RepeatTask(64), CopyTask(64, 6), SMALL_SPACE])
def test_validation_rows_are_counted_as_they_are_one_by_one(task: Task) -> None:
    of_seed = data(task, val_examples=200)
    rows = [tuple(row) for batch in of_seed.validation.batches for row in batch.tokens.tolist()]
    stream = of_seed.training_stream()
    trained = {tuple(row) for step in range(8) for row in stream.batch(step).tokens.tolist()}
    found = of_seed.validation_rows(8)
    assert (found.rows, found.distinct_rows) == (200, len(set(rows)))
    assert found.seen_in_training == pytest.approx(sum(row in trained for row in rows) / 200)
    assert of_seed.validation_rows(0).seen_in_training == 0


def test_what_is_noted_batch_by_batch_is_what_is_counted_at_the_end() -> None:
    """Two replicas whose batches are of unlike lengths, so that one has padding; and a resume in between."""
    sizes = DataConfig(**{**SIZES, "val_examples": 200})
    first, second = (TaskData(SMALL_SPACE, sizes, (3, 4), SMALL_SPACE.vocab_size) for _ in range(2))
    stream = ReplicaStream([replica.training_stream() for replica in first.replicas])
    assert any(len(set(stream[step].seq_lens)) == 2 for step in range(6))
    for data, steps in ((first, range(2)), (second, range(2, 6))):
        data.trainer = SimpleNamespace(training=True, world_size=1)
        if data is second:
            data.load_state_dict(first.state_dict())
        for step in steps:
            data.transfer_batch_to_device(stream[step], torch.device("cpu"), 0)
        data.trainer.training = False
        data.transfer_batch_to_device(stream[50], torch.device("cpu"), 0)
    for replica in range(2):
        wanted = second.replicas[replica].validation_rows(6)
        assert second.validation_rows(replica, 6) == wanted
        assert 0 < wanted.seen_in_training < 1
        # Not all batches went by here, so they are generated again.
        assert first.validation_rows(replica, 6) == wanted


def test_with_few_different_rows_validation_repeats_training() -> None:
    assert data(CountTask(26, 5, 1)).validation_rows(200).seen_in_training == 1
    assert data(RepeatTask(64)).validation_rows(200).seen_in_training == 1
    assert data(CopyTask(64, 6)).validation_rows(360) == (300, 300, 0)
