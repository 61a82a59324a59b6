"""Every task in conf/task: what it samples can be deduced, fits its vocabulary and names where each answer stands."""

import re

import numpy as np
import pytest
import yaml
from conftest import CONF
from hypothesis import given, settings
from hypothesis import strategies as st

from poslab.assembly import build
from poslab.config import ConfigError
from poslab.tasks import Batch, Task
from poslab.tasks.base import IGNORED
from poslab.tasks.copy import CopyTask
from poslab.tasks.repeat import RepeatTask

OPTIONS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((CONF / "task").glob("*.yaml"))}
every_task = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
some = settings(max_examples=30, deadline=None, derandomize=True)


def make(options: dict, **changed: int) -> Task:
    return build("task", {**options, **changed}, Task)


def drawn(options: dict, data: st.DataObject) -> tuple[Task, Batch]:
    """The task at sizes of hypothesis's choice, and a batch from a seed of its choice."""
    sizes = {name: value for name, value in options.items() if isinstance(value, int) and not isinstance(value, bool)}
    task = make(options, **{name: data.draw(st.integers(2, 9), label=name) for name in sizes})
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    return task, task.sample(rng, data.draw(st.integers(1, 8), label="rows"))


def test_tasks_are_found():
    assert {"copy", "repeat"} <= set(OPTIONS)


@every_task
@some
@given(data=st.data())
def test_a_batch_has_its_sizes_and_stays_in_the_vocabulary(options: dict, data: st.DataObject):
    task, (tokens, targets) = drawn(options, data)
    assert tokens.shape == targets.shape == (len(tokens), task.seq_len)
    assert tokens.dtype == targets.dtype == np.int64
    assert tokens.min() >= 0
    assert tokens.max() < task.vocab_size
    counted = targets[targets != IGNORED]
    assert counted.size
    assert counted.min() >= 0
    assert counted.max() < task.vocab_size


@every_task
@some
@given(data=st.data())
def test_the_oracle_names_every_target(options: dict, data: st.DataObject):
    task, (tokens, targets) = drawn(options, data)
    for row, wanted in zip(tokens, targets, strict=True):
        np.testing.assert_array_equal(task.deduce(row), wanted)


@every_task
@some
@given(data=st.data())
def test_the_oracle_reads_only_what_came_before(options: dict, data: st.DataObject):
    task, (tokens, _) = drawn(options, data)
    query = data.draw(st.integers(0, task.seq_len - 1), label="query")
    for row, other in zip(tokens, np.roll(tokens, 1, axis=0), strict=True):
        mixed = np.concatenate((row[: query + 1], other[query + 1 :]))
        np.testing.assert_array_equal(task.deduce(mixed)[: query + 1], task.deduce(row)[: query + 1])


@every_task
@some
@given(data=st.data())
def test_answer_cells_hold_the_answer(options: dict, data: st.DataObject):
    task, (tokens, targets) = drawn(options, data)
    for row, wanted in zip(tokens, targets, strict=True):
        cells = task.answer_cells(row)
        assert cells.shape == (task.seq_len, task.seq_len)
        assert cells.dtype == bool
        queries, keys = np.nonzero(cells)
        assert (keys <= queries).all(), "an answer above the diagonal cannot be seen"
        np.testing.assert_array_equal(row[keys], wanted[queries])
        np.testing.assert_array_equal(cells.any(axis=1), wanted != IGNORED)


@every_task
def test_the_default_sizes_use_the_whole_vocabulary_and_rows_differ(options: dict):
    task = make(options)
    tokens, _ = task.sample(np.random.default_rng(0), 2000)
    assert set(np.unique(tokens)) == set(range(task.vocab_size))
    assert len(np.unique(tokens, axis=0)) > 50


@every_task
def test_a_batch_comes_from_its_generator_alone(options: dict):
    task = make(options)
    np.random.seed(1)  # noqa: NPY002  (the global state is what must not matter)
    one = task.sample(np.random.default_rng(5), 16)
    np.random.seed(2)  # noqa: NPY002
    task.sample(np.random.default_rng(6), 3)
    again = task.sample(np.random.default_rng(5), 16)
    other = task.sample(np.random.default_rng(6), 16)
    np.testing.assert_array_equal(one.tokens, again.tokens)
    np.testing.assert_array_equal(one.targets, again.targets)
    assert not np.array_equal(one.tokens, other.tokens)


@every_task
def test_labels_are_short_and_tell_tokens_apart(options: dict):
    task = make(options)
    labels = [task.token_label(token) for token in range(task.vocab_size)]
    assert len(set(labels)) == task.vocab_size
    assert all(1 <= len(label) <= 6 for label in labels)


@every_task
def test_the_docstring_shows_rows_that_hold(options: dict):
    task = make(options)
    ids = {task.token_label(token): token for token in range(task.vocab_size)} | {".": IGNORED}
    rows = dict(re.findall(r"^ +(tokens|targets) +(.+)$", type(task).__doc__ or "", re.MULTILINE))
    tokens, targets = (np.array([ids[label] for label in rows[name].split()]) for name in ("tokens", "targets"))
    np.testing.assert_array_equal(task.deduce(tokens), targets)


def test_copy_writes_the_string_a_separator_and_the_string_again():
    task = CopyTask(n_symbols=10, length=3)
    assert (task.vocab_size, task.seq_len, task.separator) == (11, 6, 10)
    tokens, targets = task.sample(np.random.default_rng(0), 50)
    strings = tokens[:, :3]
    assert strings.max() < 10
    np.testing.assert_array_equal(tokens[:, 3], 10)
    np.testing.assert_array_equal(tokens[:, 4:], strings[:, :2])
    np.testing.assert_array_equal(targets[:, :3], IGNORED)
    np.testing.assert_array_equal(targets[:, 3:], strings)
    assert task.token_label(10) == "SEP"
    assert task.token_label(7) == "7"


def test_copy_looks_back_by_its_length():
    task = CopyTask(n_symbols=10, length=3)
    # Every symbol alike: the answer is still the place it was copied from, not every equal token.
    assert np.argwhere(task.answer_cells(np.array([4, 4, 4, 10, 4, 4]))).tolist() == [[3, 0], [4, 1], [5, 2]]


def test_copy_defaults_are_the_lesson_s():
    task = make(OPTIONS["copy"])
    assert (task.vocab_size, task.seq_len) == (65, 12)


def test_repeat_writes_one_token_again_and_again():
    task = RepeatTask(n_symbols=9, seq_len=5)
    assert (task.vocab_size, task.seq_len) == (9, 5)
    tokens, targets = task.sample(np.random.default_rng(0), 50)
    np.testing.assert_array_equal(tokens, np.repeat(tokens[:, :1], 5, axis=1))
    np.testing.assert_array_equal(tokens, targets)
    assert task.answer_cells(tokens[0]).tolist() == np.tri(5, dtype=bool).tolist()


@pytest.mark.parametrize(
    ("name", "size"), [("copy", {"n_symbols": 1}), ("copy", {"length": 0}), ("repeat", {"seq_len": 0})]
)
def test_a_size_that_leaves_nothing_is_refused_with_the_number(name: str, size: dict[str, int]):
    ((option, value),) = size.items()
    with pytest.raises(ConfigError, match=rf"task\.{option} {value} .*at least {value + 1}"):
        make(OPTIONS[name], **size)
