"""What every task in conf/task keeps: its rows can be deduced, fit its vocabulary and name where each answer stands."""

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poslab.errors import ConfigError
from poslab.tasks import Batch, Task
from poslab.tasks.base import IGNORED
from poslab.tasks.repeat import RepeatTask
from support.every_task import (
    OPTIONS,
    check_by_the_oracle,
    every_task,
    length_option,
    make,
    one_length,
    sizes_for,
    tasks_with,
)

some = settings(max_examples=30, deadline=None, derandomize=True)


def drawn(options: dict, data: st.DataObject) -> tuple[Task, Batch]:
    """The task with options of hypothesis's choice, and a batch from a seed of its choice."""
    chosen: dict = {}
    for name, default in options.items():
        if isinstance(default, bool):
            chosen[name] = data.draw(st.booleans(), label=name)
        elif isinstance(default, int) and not name.startswith("min_"):
            chosen[name] = data.draw(st.integers(2, 9), label=name)
        elif default is None and not name.startswith("min_"):
            chosen[name] = data.draw(st.none() | st.integers(1, 9), label=name)
    longest = length_option(options)
    chosen[f"min_{longest}"] = data.draw(st.none() | st.integers(1, chosen[longest]), label="shortest")
    if chosen.get("distinct", True):
        for name, enough in sizes_for(options, chosen[longest]).items():
            chosen[name] = max(chosen[name], enough)
    task = make(options, **chosen)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    return task, task.sample(rng, data.draw(st.integers(1, 8), label="rows"))


def whole_rows(batch: Batch) -> np.ndarray:
    """Rows with the last token, which is only a target."""
    return np.concatenate((batch.tokens, batch.targets[:, -1:]), axis=1)


def labels(task: Task, tokens: np.ndarray) -> list[str]:
    return [task.token_label(token) for token in tokens.tolist()]


def test_tasks_are_found():
    assert {"copy", "repeat", "count", "reverse", "sort", "selective_copy", "associative_recall", "induction"} <= set(
        OPTIONS
    )


@every_task
@some
@given(data=st.data())
def test_a_batch_has_its_sizes_and_stays_in_the_vocabulary(options: dict, data: st.DataObject):
    task, (tokens, targets) = drawn(options, data)
    assert tokens.shape == targets.shape
    assert tokens.shape[1] in {task.seq_len_at(length) for length in task.lengths}
    assert tokens.shape[1] <= task.seq_len
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
def test_the_oracle_names_every_target_and_answer_cells_hold_it(options: dict, data: st.DataObject):
    check_by_the_oracle(*drawn(options, data))


@every_task
@some
@given(data=st.data())
def test_the_oracle_reads_only_what_came_before(options: dict, data: st.DataObject):
    task, (tokens, _) = drawn(options, data)
    query = data.draw(st.integers(0, tokens.shape[1] - 1), label="query")
    for row, other in zip(tokens, np.roll(tokens, 1, axis=0), strict=True):
        prefix = row[: query + 1]
        known = task.deduce(row)[: query + 1]
        np.testing.assert_array_equal(task.deduce(prefix), known)
        np.testing.assert_array_equal(task.deduce(np.concatenate((prefix, other[query + 1 :])))[: query + 1], known)


@every_task
@some
@given(data=st.data())
def test_answer_cells_of_an_unfinished_row_are_those_so_far(options: dict, data: st.DataObject):
    task, (tokens, _) = drawn(options, data)
    seen = data.draw(st.integers(1, tokens.shape[1]), label="seen")
    for row in tokens:
        cells = task.answer_cells(row)
        np.testing.assert_array_equal(task.answer_cells(row[:seen]), cells[:seen, :seen])


@every_task
@some
@given(data=st.data())
def test_a_prompt_answered_token_by_token_is_the_sampled_row(options: dict, data: st.DataObject):
    task, batch = drawn(options, data)
    for row, wanted in zip(whole_rows(batch), batch.targets, strict=True):
        # The prompt ends where the last stretch of targets begins: after the separator, or the last query.
        counted = np.flatnonzero(wanted != IGNORED)
        stretches = counted[np.flatnonzero(np.diff(counted, prepend=-2) > 1)]
        prompt = row[: stretches[-1] + 1]
        symbols = [label for label in labels(task, prompt) if label not in ("BOS", "SEP")]
        typed = task.encode(" ".join(symbols))
        assert labels(task, typed) == symbols
        np.testing.assert_array_equal(task.prompt(typed), prompt)
        np.testing.assert_array_equal(task.prompt(prompt), prompt)
        written = prompt
        for _ in range(task.answer_length(prompt)):
            written = np.append(written, task.deduce(written)[-1])
        # A repeated token has no end: it is answered by as many as there are.
        end = 2 * len(prompt) if isinstance(task, RepeatTask) else len(row)
        np.testing.assert_array_equal(written, row[:end])


@every_task
def test_the_default_sizes_use_the_whole_vocabulary_and_rows_differ(options: dict):
    task = make(options)
    batch = task.sample(np.random.default_rng(0), 2000)
    assert set(np.unique(whole_rows(batch))) == set(range(task.vocab_size))
    assert len(np.unique(batch.tokens, axis=0)) > 50


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


@tasks_with("bos", "eos")
def test_bos_and_eos_stand_around_the_row_and_eos_is_to_be_named(options: dict):
    def rows(bos: bool, eos: bool) -> tuple[list[list[str]], Task, Batch]:
        task = one_length(options, 4, bos=bos, eos=eos)
        batch = task.sample(np.random.default_rng(2), 5)
        return [labels(task, row) for row in whole_rows(batch)], task, batch

    plain = rows(False, False)[0]
    for bos, eos in ((True, False), (False, True), (True, True)):
        found, task, batch = rows(bos, eos)
        assert found == [["BOS"] * bos + row + ["EOS"] * eos for row in plain]
        assert batch.tokens.shape[1] == task.seq_len == len(plain[0]) - 1 + bos + eos
        assert ((batch.targets != IGNORED).sum(axis=1) == 4 + eos).all()
        assert "EOS" not in labels(task, np.unique(batch.tokens)), "it is the last target"


@tasks_with("distinct")
def test_distinct_strings_are_permutations_each_as_likely_as_another(options: dict):
    task = one_length(options, 3, n_symbols=3, distinct=True)
    tokens, _ = task.sample(np.random.default_rng(0), 6000)
    sources = tokens[:, : np.flatnonzero(tokens[0] == 3)[0]]
    met = Counter(tuple(row[row < 3].tolist()) for row in sources)
    assert all(len(set(string)) == 3 for string in met)
    assert len(met) == 6
    assert all(abs(count - 1000) < 150 for count in met.values())  # 5 spreads of a binomial


@tasks_with("distinct")
def test_strings_are_drawn_freely_unless_they_are_to_be_distinct(options: dict):
    tokens, _ = one_length(options, 3, n_symbols=3, distinct=False).sample(np.random.default_rng(0), 2000)
    sources = tokens[:, : np.flatnonzero(tokens[0] == 3)[0]]
    assert len({tuple(row[row < 3].tolist()) for row in sources}) == 27


@tasks_with("distinct")
def test_more_distinct_symbols_than_there_are_are_refused(options: dict):
    task = one_length(options, 5, n_symbols=5, distinct=True)
    message = r"length 6 .*distinct.* only 5; use more task\.n_symbols or task\.distinct=false"
    with pytest.raises(ValueError, match=message):
        task.sample(np.random.default_rng(0), 2, 6)
    with pytest.raises(ConfigError, match=message):
        one_length(options, 6, n_symbols=5, distinct=True)
    assert one_length(options, 6, n_symbols=5).sample(np.random.default_rng(0), 2).tokens.size


@every_task
def test_labels_are_short_and_tell_tokens_apart(options: dict):
    task = make(options)
    names = labels(task, np.arange(task.vocab_size))
    assert len(set(names)) == task.vocab_size
    assert all(1 <= len(name) <= 6 for name in names)
    with pytest.raises(ValueError, match=r"'SEPP' is not a token of this task; the tokens are: .*\d"):
        task.encode(f"{names[0]} SEPP")


@every_task
def test_the_docstring_shows_rows_that_hold(options: dict):
    task = make(options)
    ids = {task.token_label(token): token for token in range(task.vocab_size)} | {".": IGNORED}
    rows = dict(re.findall(r"^ +(tokens|targets) +(.+)$", type(task).__doc__ or "", re.MULTILINE))
    tokens, targets = (np.array([ids[label] for label in rows[name].split()]) for name in ("tokens", "targets"))
    np.testing.assert_array_equal(task.deduce(tokens), targets)
