"""Losses, scores and similarities, held to loops over plain numbers."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from poslab import neighbour_cosine_curve
from poslab.evaluation.metrics import Score, neighbour_cosine_matrix, score, token_loss

quick = settings(deadline=None, max_examples=100, derandomize=True)
IGNORED = -100


def batch(rows: int, length: int, vocab: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits that are right about half of the time, and targets of which about a third count in nothing."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(vocab, (rows, length), generator=generator)
    logits = torch.randn(rows, length, vocab, generator=generator)
    logits += 2 * torch.nn.functional.one_hot(targets, vocab)
    targets[torch.rand(rows, length, generator=generator) < 0.35] = IGNORED
    return logits, targets


def by_hand(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """The sums of a score, number by number."""
    sums = {"loss_sum": 0.0, "tokens": 0, "tokens_right": 0, "rows": 0, "rows_right": 0}
    for row_logits, row_targets in zip(logits.tolist(), targets.tolist(), strict=True):
        counted = [(z, y) for z, y in zip(row_logits, row_targets, strict=True) if y != IGNORED]
        right = [max(range(len(z)), key=z.__getitem__) == y for z, y in counted]
        sums["loss_sum"] += sum(math.log(sum(map(math.exp, z))) - z[y] for z, y in counted)
        sums["tokens"] += len(counted)
        sums["tokens_right"] += sum(right)
        sums["rows"] += bool(counted)
        sums["rows_right"] += bool(counted) and all(right)
    return sums


# Loss.


@quick
@given(rows=st.integers(1, 5), length=st.integers(1, 6), vocab=st.integers(2, 7), seed=st.integers(0, 2**16))
def test_token_loss_is_the_mean_over_counted_targets(rows: int, length: int, vocab: int, seed: int) -> None:
    logits, targets = batch(rows, length, vocab, seed)
    targets[0, 0] = 1
    sums = by_hand(logits, targets)
    assert float(token_loss(logits, targets)) == pytest.approx(sums["loss_sum"] / sums["tokens"], rel=1e-5)


def test_token_loss_of_a_uniform_guess_is_the_log_of_the_vocabulary() -> None:
    targets = torch.tensor([[3, 5, IGNORED]])
    assert float(token_loss(torch.zeros(1, 3, 64), targets)) == pytest.approx(math.log(64))


def test_ignored_positions_receive_no_gradient() -> None:
    logits, targets = batch(3, 4, 5, seed=0)
    targets[0] = torch.tensor([IGNORED, 2, IGNORED, 1])
    logits.requires_grad_()
    token_loss(logits, targets).backward()
    assert torch.equal(logits.grad.abs().sum(-1) > 0, targets != IGNORED)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_loss_and_score_work_in_fp32_from_low_precision_logits(dtype: torch.dtype) -> None:
    logits, targets = batch(8, 6, 40, seed=0)
    logits = logits.to(dtype)
    assert token_loss(logits, targets).dtype == torch.float32
    assert torch.equal(token_loss(logits, targets), token_loss(logits.float(), targets))
    assert torch.equal(score(logits, targets).loss_sum, score(logits.float(), targets).loss_sum)


# Score.


@quick
@given(rows=st.integers(1, 6), length=st.integers(1, 6), vocab=st.integers(2, 6), seed=st.integers(0, 2**16))
def test_score_by_hand(rows: int, length: int, vocab: int, seed: int) -> None:
    logits, targets = batch(rows, length, vocab, seed)
    found = score(logits, targets)._asdict()
    expected = by_hand(logits, targets)
    assert float(found.pop("loss_sum")) == pytest.approx(expected.pop("loss_sum"), rel=1e-5, abs=1e-6)
    assert {name: int(value) for name, value in found.items()} == expected


def test_accuracy_and_exact_match_leave_out_ignored_positions() -> None:
    """Row 0 is right where it counts, row 1 has one miss in three, row 2 counts in nothing."""
    answers = torch.tensor([[1, 2, 3], [1, 2, 3], [1, 2, 3]])
    targets = torch.tensor([[IGNORED, 2, 3], [1, 2, 0], [IGNORED, IGNORED, IGNORED]])
    logits = 50.0 * torch.nn.functional.one_hot(answers, 4)
    means = score(logits, targets).means()
    assert means == {"loss": pytest.approx(10.0), "accuracy": pytest.approx(4 / 5), "exact_match": pytest.approx(1 / 2)}


def test_means_divide_tokens_by_tokens_and_rows_by_rows() -> None:
    sums = Score(*map(torch.tensor, (12.0, 8, 6, 4, 1)))
    assert sums.means() == {"loss": 1.5, "accuracy": 0.75, "exact_match": 0.25}


@quick
@given(cuts=st.lists(st.integers(0, 24), max_size=6), seed=st.integers(0, 2**16))
def test_sums_do_not_depend_on_the_batches(cuts: list[int], seed: int) -> None:
    logits, targets = batch(24, 5, 6, seed)
    whole = score(logits, targets)
    edges = [0, *sorted(cuts), 24]
    parts = [score(logits[a:b], targets[a:b]) for a, b in pairwise(edges) if a < b]
    added = Score(*(torch.stack(values).sum(0) for values in zip(*parts, strict=True)))
    assert [int(v) for v in added[1:]] == [int(v) for v in whole[1:]]
    assert float(added.loss_sum) == pytest.approx(float(whole.loss_sum), rel=1e-7)
    assert added.means() == pytest.approx(whole.means(), rel=1e-7)


def test_losses_add_up_in_fp64() -> None:
    assert score(*batch(4, 5, 6, seed=0)).loss_sum.dtype == torch.float64


# Similarity of neighbours.


def test_curve_of_rows_that_can_be_checked_by_eye() -> None:
    """Rows at 0, 90, 180 and 270 degrees, of any length: neighbours are orthogonal, then opposite, then orthogonal."""
    table = torch.tensor([[1.0, 0], [0, 5], [-0.1, 0], [0, -7]])
    assert neighbour_cosine_curve(table, 3) == pytest.approx([0, -1, 0], abs=1e-6)


@quick
@given(rows=st.integers(2, 9), width=st.integers(1, 6), seed=st.integers(0, 2**16), data=st.data())
def test_curve_by_hand(rows: int, width: int, seed: int, data: st.DataObject) -> None:
    max_offset = data.draw(st.integers(1, rows - 1))
    table = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    numbers = table.tolist()

    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))

    expected = [
        sum(cosine(numbers[p], numbers[p + k]) for p in range(rows - k)) / (rows - k) for k in range(1, max_offset + 1)
    ]
    curve = neighbour_cosine_curve(table, max_offset)
    assert curve == pytest.approx(expected, abs=1e-5)
    assert all(type(value) is float for value in curve)


def test_curve_has_eight_offsets_by_default() -> None:
    assert len(neighbour_cosine_curve(torch.randn(20, 4))) == 8


@pytest.mark.parametrize(("rows", "max_offset"), [(4, 0), (4, 4), (4, -1), (4, 100), (1, 1), (8, 8)])
def test_an_offset_outside_the_table_is_refused_with_the_numbers(rows: int, max_offset: int) -> None:
    with pytest.raises(ValueError, match=rf"(?<![-\d]){max_offset}\b.*\b{rows - 1}\b"):
        neighbour_cosine_curve(torch.randn(rows, 3), max_offset)


@pytest.mark.usefixtures("as_shipped")
@pytest.mark.parametrize("shape", [(4,), (2, 4, 3)])
def test_a_table_that_is_not_2d_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"2-D|\(n, d\)") as refusal:
        neighbour_cosine_curve(torch.randn(shape), 1)
    assert str(shape) in str(refusal.value)


def test_a_zero_row_is_similar_to_nothing() -> None:
    table = torch.tensor([[1.0, 0], [0, 0], [1, 0], [1, 0]])
    assert neighbour_cosine_curve(table, 3) == pytest.approx([1 / 3, 1 / 2, 1])
    assert neighbour_cosine_curve(torch.zeros(5, 3), 4) == [0, 0, 0, 0]


def test_the_curve_of_a_bf16_table_is_computed_in_fp32() -> None:
    table = torch.randn(64, 32).bfloat16()
    assert neighbour_cosine_curve(table, 8) == neighbour_cosine_curve(table.float(), 8)
    assert neighbour_cosine_matrix(table).dtype == torch.float32


def test_the_curve_takes_a_trained_table() -> None:
    table = torch.nn.Parameter(torch.randn(9, 4))
    assert len(neighbour_cosine_curve(table, 8)) == 8
    assert not neighbour_cosine_matrix(table).requires_grad


def test_the_matrix_holds_every_pair() -> None:
    table = torch.randn(6, 4)
    matrix = neighbour_cosine_matrix(table)
    expected = [[float(torch.cosine_similarity(a, b, dim=0)) for b in table] for a in table]
    torch.testing.assert_close(matrix, torch.tensor(expected), rtol=0, atol=1e-6)
