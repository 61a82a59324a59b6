"""Each task on its own: rows written out by hand, and what makes it the question that it is."""

import numpy as np
import pytest

from poslab.tasks import Task
from poslab.tasks.associative_recall import AssociativeRecallTask
from poslab.tasks.base import IGNORED
from poslab.tasks.copy import CopyTask
from poslab.tasks.count import CountTask
from poslab.tasks.induction import InductionTask
from poslab.tasks.repeat import RepeatTask
from poslab.tasks.reverse import ReverseTask
from poslab.tasks.selective_copy import SelectiveCopyTask
from poslab.tasks.sort import SortTask


def ids(task: Task, labels: str) -> np.ndarray:
    """Token ids of a row as the docstrings write it; ``.`` counts in no loss."""
    return np.array([IGNORED if label == "." else int(task.encode(label)[0]) for label in labels.split()])


def targets(task: Task, tokens: str) -> str:
    """What the oracle wants at each token of a row."""
    found = task.deduce(ids(task, tokens)).tolist()
    return " ".join("." if target == IGNORED else task.token_label(target) for target in found)


def cells(task: Task, tokens: str) -> list[list[int]]:
    return np.argwhere(task.answer_cells(ids(task, tokens))).tolist()


def sample(task: Task, rows: int = 50) -> tuple[np.ndarray, np.ndarray]:
    tokens, wanted = task.sample(np.random.default_rng(0), rows)
    return tokens, wanted


def test_copy_writes_the_string_a_separator_and_the_string_again():
    task = CopyTask(n_symbols=10, length=3)
    assert (task.vocab_size, task.seq_len, task.separator) == (11, 6, 10)
    tokens, wanted = sample(task)
    strings = tokens[:, :3]
    assert strings.max() < 10
    np.testing.assert_array_equal(tokens[:, 3], 10)
    np.testing.assert_array_equal(tokens[:, 4:], strings[:, :2])
    np.testing.assert_array_equal(wanted[:, :3], IGNORED)
    np.testing.assert_array_equal(wanted[:, 3:], strings)
    assert task.token_label(10) == "SEP"
    assert task.token_label(7) == "7"


def test_copy_looks_back_by_its_length():
    task = CopyTask(n_symbols=10, length=3)
    # Every symbol alike: the answer is still the place it was copied from, not every equal token.
    assert cells(task, "4 4 4 SEP 4 4") == [[3, 0], [4, 1], [5, 2]]
    assert targets(CopyTask(10, 3, bos=True, eos=True), "BOS 1 2 3 SEP 1 2 3") == ". . . . 1 2 3 EOS"


def test_copy_defaults_are_the_lesson_s():
    task = CopyTask()
    assert (task.vocab_size, task.seq_len) == (65, 12)


def test_repeat_writes_one_token_again_and_again():
    task = RepeatTask(n_symbols=9, seq_len=5)
    assert (task.vocab_size, task.seq_len) == (9, 5)
    tokens, wanted = sample(task)
    np.testing.assert_array_equal(tokens, np.repeat(tokens[:, :1], 5, axis=1))
    np.testing.assert_array_equal(tokens, wanted)
    assert task.answer_cells(tokens[0]).tolist() == np.tri(5, dtype=bool).tolist()


def test_count_writes_one_symbol_as_often_as_it_stood_and_stops():
    task = CountTask(n_symbols=9, length=3)
    assert (task.vocab_size, task.seq_len) == (11, 7)
    tokens, wanted = sample(task)
    symbol = tokens[:, :1]
    np.testing.assert_array_equal(tokens[:, [0, 1, 2, 4, 5, 6]], np.repeat(symbol, 6, axis=1))
    np.testing.assert_array_equal(tokens[:, 3], 9)
    np.testing.assert_array_equal(wanted[:, 3:], np.concatenate((*[symbol] * 3, np.full((50, 1), 10)), axis=1))
    assert set(symbol[:, 0]) == set(range(9))
    assert targets(task, "5 SEP 5") == ". 5 EOS"
    assert targets(task, "5 5 SEP 5 5") == ". . 5 5 EOS"
    assert targets(CountTask(9, 3, eos=False), "5 5 SEP 5") == ". . 5 5"


def test_count_s_answer_is_every_earlier_one_of_its_symbol_and_eos_is_nowhere():
    assert cells(CountTask(9, 2), "5 5 SEP 5 5") == [[2, 0], [2, 1], [3, 0], [3, 1], [3, 3]]
    assert cells(CountTask(9, 1, bos=True), "BOS 5 SEP 5") == [[2, 1]]


def test_reverse_writes_the_string_backwards():
    task = ReverseTask(n_symbols=10, length=3)
    assert (task.vocab_size, task.seq_len) == (11, 6)
    tokens, wanted = sample(task)
    np.testing.assert_array_equal(wanted[:, 3:], np.stack((tokens[:, 2], tokens[:, 1], tokens[:, 0]), axis=1))
    assert targets(task, "1 2 3 SEP 3 2") == ". . . 3 2 1"
    assert cells(task, "4 4 4 SEP 4 4") == [[3, 2], [4, 1], [5, 0]]
    bounded = ReverseTask(10, 2, bos=True, eos=True)
    assert targets(bounded, "BOS 1 2 SEP 2 1") == ". . . 2 1 EOS"
    assert cells(bounded, "BOS 1 2 SEP 2 1") == [[3, 2], [4, 1]]


def test_sort_writes_the_symbols_in_ascending_order():
    task = SortTask(n_symbols=20, length=4)
    assert (task.vocab_size, task.seq_len) == (21, 8)
    for row, wanted in zip(*sample(task), strict=True):
        assert wanted[4:].tolist() == sorted(row[:4].tolist())
    assert targets(task, "12 3 7 3 SEP 3 3 7") == ". . . . 3 3 7 12"
    # Of equal symbols the first to stand is the first to be written.
    assert cells(task, "12 3 7 3 SEP 3 3 7") == [[4, 1], [5, 3], [6, 2], [7, 0]]
    assert targets(SortTask(20, 2, bos=True, eos=True), "BOS 9 4 SEP 4 9") == ". . . 4 9 EOS"


def test_selective_copy_leaves_the_noise_out():
    task = SelectiveCopyTask(n_symbols=10, length=3, n_noise=2, bos=True, eos=True)
    assert (task.vocab_size, task.seq_len) == (14, 10)
    row = "BOS 4 NOISE 4 NOISE 9 SEP 4 4 9"
    assert targets(task, row) == ". . . . . . 4 4 9 EOS"
    assert cells(task, row) == [[6, 1], [7, 3], [8, 5]]
    tokens, wanted = sample(task)
    for source, answer in zip(tokens[:, 1:6], wanted[:, 6:9], strict=True):
        assert [token for token in source if token != task.noise] == answer.tolist()


def test_selective_copy_puts_its_noise_anywhere():
    task = SelectiveCopyTask(n_symbols=10, length=2, n_noise=2)
    tokens, _ = sample(task, 6000)
    places, met = np.unique(tokens[:, :4] == task.noise, axis=0, return_counts=True)
    assert len(places) == 6
    assert (abs(met - 1000) < 150).all()  # 5 spreads of a binomial
    with pytest.raises(ValueError, match=r"task\.n_noise -1 is below 0"):
        SelectiveCopyTask(n_noise=-1)


def test_selective_copy_without_noise_is_copy():
    for one, other in zip(sample(SelectiveCopyTask(n_noise=0, eos=True)), sample(CopyTask(eos=True)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_associative_recall_names_the_value_of_a_key():
    task = AssociativeRecallTask(n_keys=10, n_values=5, length=3, n_queries=2)
    assert (task.vocab_size, task.seq_len) == (15, 9)
    row = "k9 v4 k2 v0 k5 v0 k2 v0 k9"
    assert targets(task, row) == ". . . . . . v0 . v4"
    # The value of the queried pair, not the same value of another pair or an earlier answer.
    assert cells(task, row) == [[6, 3], [8, 1]]
    assert cells(task, "k9 v4 k9 v4 k9") == [[2, 1], [4, 1]]
    assert task.answer_length(ids(task, row)) == 1


def test_associative_recall_keeps_its_pairs_at_every_length():
    task = AssociativeRecallTask(n_keys=40, n_values=3, length=4)
    for length in (1, 4, 40):
        tokens, wanted = task.sample(np.random.default_rng(0), 30, length)
        assert tokens.shape == (30, 4 * length - 1)
        for row, answers in zip(tokens.tolist(), wanted, strict=True):
            values = dict(zip(row[0 : 2 * length : 2], row[1 : 2 * length : 2], strict=True))
            assert len(values) == length, "a key stands twice"
            assert answers[2 * length :: 2].tolist() == [values[key] for key in row[2 * length :: 2]]
            assert min(values.values()) >= 40 > max(values)
    with pytest.raises(ValueError, match=r"length 41 .*only 40 distinct keys; .*task\.n_keys=41"):
        task.sample(np.random.default_rng(0), 2, 41)


def test_associative_recall_asks_for_any_of_its_keys():
    task = AssociativeRecallTask(n_keys=8, n_values=8, length=3, n_queries=5)
    tokens, _ = sample(task, 2000)
    asked = (tokens[:, 6::2, None] == tokens[:, None, 0:6:2]).argmax(axis=2)
    np.testing.assert_allclose(np.bincount(asked.ravel()) / asked.size, 1 / 3, atol=0.02)


def test_induction_goes_on_as_it_did_before():
    task = InductionTask(n_symbols=10, length=2)
    assert (task.vocab_size, task.seq_len) == (10, 6)
    assert targets(task, "7 2 5 9 7 2") == ". . . . 2 5"
    assert targets(task, "7 2 5 9 2 5") == ". . . . 5 9"
    assert cells(task, "7 2 5 9 2 5") == [[4, 2], [5, 3]]
    assert task.answer_length(ids(task, "7 2 5 9 2")) == 2
    assert task.answer_length(ids(task, "7 7")) == 1
    for row, wanted in zip(*sample(InductionTask(30, 5)), strict=True):
        string = row[:10].tolist()
        assert len(set(string)) == 10
        start = string.index(row[10])
        assert start < 5
        assert wanted[10:].tolist() == string[start + 1 : start + 6]


def test_induction_is_not_solved_by_a_distance():
    n = 6
    tokens, wanted = sample(InductionTask(64, n), 6000)
    counted = tokens[:, 2 * n :]
    for distance in range(2 * n):
        # Only keys that are there for every query.
        looked_at = tokens[:, 2 * n - distance : 3 * n - distance]
        assert looked_at.shape == counted.shape
        assert (looked_at == wanted[:, 2 * n :]).mean() < 1 / n + 0.03
    with pytest.raises(ValueError, match=r"length 33 needs 66 .*only 64; .*task\.n_symbols=66"):
        InductionTask(64, 33)
