"""Lengths of every task in conf/task: ranges, lengths asked for, and sizes that leave nothing."""

from collections import Counter

import numpy as np
import pytest

from poslab.errors import ConfigError
from support.every_task import check_by_the_oracle, every_task, length_option, make, one_length, sizes_for


@every_task
def test_far_beyond_the_lengths_of_training(options: dict):
    length = 150
    task = one_length(options, 4, **sizes_for(options, length))
    batch = task.sample(np.random.default_rng(0), 3, length)
    assert batch.tokens.shape == (3, task.seq_len_at(length))
    assert batch.tokens.shape[1] >= length
    check_by_the_oracle(task, batch)


@every_task
def test_a_range_draws_one_length_for_each_batch_and_meets_every_one(options: dict):
    name = length_option(options)
    task = make(options, **{name: 6, f"min_{name}": 3})
    assert task.lengths == range(3, 7)
    assert task.seq_len == task.seq_len_at(6)
    rng = np.random.default_rng(0)
    met = Counter(task.sample(rng, 2).tokens.shape[1] for _ in range(400))
    assert set(met) == {task.seq_len_at(length) for length in (3, 4, 5, 6)}
    assert min(met.values()) > 60  # of 100 expected, spread 9


@every_task
def test_a_range_of_one_makes_the_batches_of_no_range(options: dict):
    name = length_option(options)
    ranged = make(options, **{name: 5, f"min_{name}": 5}).sample(np.random.default_rng(3), 9)
    single = one_length(options, 5).sample(np.random.default_rng(3), 9)
    for one, other in zip(ranged, single, strict=True):
        np.testing.assert_array_equal(one, other)


@every_task
def test_a_length_asked_for_is_the_length_made(options: dict):
    name = length_option(options)
    task = make(options, **{name: 6, f"min_{name}": 3})
    for length in (1, 2, 4, 9):
        asked = task.sample(np.random.default_rng(1), 4, length)
        alone = one_length(options, length).sample(np.random.default_rng(1), 4)
        for one, other in zip(asked, alone, strict=True):
            np.testing.assert_array_equal(one, other)


@every_task
def test_lengths_that_leave_nothing_are_refused_with_the_numbers(options: dict):
    name = length_option(options)
    for shortest, longest, message in ((0, 4, r"length 0 .*at least 1"), (5, 4, r"min_length 5 is above length 4")):
        with pytest.raises(ConfigError, match=message):
            make(options, **{name: longest, f"min_{name}": shortest})
    with pytest.raises(ValueError, match=r"length 0 .*at least 1"):
        make(options).sample(np.random.default_rng(0), 2, 0)


@every_task
def test_sizes_that_leave_nothing_are_refused_with_the_number(options: dict):
    least = {"n_symbols": 2, "n_keys": 1, "n_values": 2, "n_queries": 1}
    for name in {length_option(options), *least} & set(options):
        minimum = least.get(name, 1)
        with pytest.raises(ConfigError, match=rf"task\.{name} {minimum - 1} .*at least {minimum}"):
            make(options, **{f"min_{length_option(options)}": None, name: minimum - 1})
