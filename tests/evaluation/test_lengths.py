"""Scores past the training length: what they are, that the sets are fixed, and what is out of reach."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poslab.config.schema import DataConfig
from poslab.data.module import SeedData
from poslab.evaluation.generation import generate
from poslab.evaluation.lengths import AtLength, at_lengths
from poslab.evaluation.metrics import score
from poslab.model import LanguageModel, TinyAttentionLM
from poslab.positions import LearnedPositionalEmbedding, NoPositions, PositionScheme, SinusoidalPositionalEmbedding
from poslab.tasks.copy import CopyTask

SIZES = {"batch_size": 4, "steps_per_epoch": 1, "val_examples": 8, "val_batch_size": 6, "num_workers": 0}


def make(task: CopyTask, seed: int = 3) -> SeedData:
    return SeedData(task, DataConfig(**SIZES), seed, task.vocab_size)


class Solver(LanguageModel):
    """Writes the right answer, but for the last symbol of every other row of a string of more than ``known`` symbols.

    It also keeps what it was asked.
    """

    def __init__(self, task: CopyTask, known: int, positions: PositionScheme | None = None) -> None:
        super().__init__(task.vocab_size, 4, task.seq_len, positions or NoPositions(), None)
        self.head = self.make_head(tie_embeddings=False)
        self.task, self.known = task, known
        self.asked: list[Tensor] = []

    def body_parts(self) -> Mapping[str, nn.Module]:
        return {}

    def body(self, x: Tensor, maps: list[Tensor] | None) -> Tensor:
        return x

    def __deepcopy__(self, memo: dict) -> "Solver":
        longer = Solver(self.task, self.known, self.positions)
        longer.asked = self.asked
        return longer.train(self.training)

    def forward(self, ids: Tensor) -> Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        self.asked.append(ids)
        return self.answered(ids)

    def new_cache(self) -> list[Tensor]:
        return []

    def read(self, ids: Tensor, cache: list[Tensor]) -> Tensor:
        cache.append(ids)
        return self.answered(torch.cat(cache, dim=1))

    def answered(self, ids: Tensor) -> Tensor:
        answers = torch.from_numpy(np.stack([self.task.deduce(row) for row in ids.numpy()])).clamp(min=0)
        if ids.shape[1] > self.task.seq_len_at(self.known):
            answers[::2, -1] = (answers[::2, -1] + 1) % self.task.n_symbols
        return nn.functional.one_hot(answers, self.vocab_size).float()


def test_a_model_that_is_right_up_to_a_length_scores_so():
    """Of 11 rows in batches of 6 and 5, rows 0, 2, 4 of each are wrong in one of their symbols."""
    task = CopyTask(n_symbols=20, length=4)
    found = at_lengths(Solver(task, known=5), make(task), [4, 5, 6, 10], n_examples=11)
    assert found[:2] == [AtLength(4, 1.0, 1.0, None), AtLength(5, 1.0, 1.0, None, 1.0)]
    # Asked token by token, it is wrong wherever it has read more than the ten tokens of length 5.
    for at, length, wrong in zip(found[2:], (6, 10), (2, 10), strict=True):
        assert at.free_accuracy == pytest.approx(1 - 6 * wrong / (11 * length))
        assert at.exact_match == pytest.approx(5 / 11)
        assert at.accuracy == pytest.approx(1 - 6 / (11 * length))


def test_the_set_of_a_length_is_fixed_by_seed_length_and_number_alone():
    task, ranged = CopyTask(20, 4), CopyTask(20, 4, min_length=2)
    asked: list[list[Tensor]] = []
    for made, lengths in ((task, [7]), (task, [2, 7, 9]), (ranged, [9, 7])):
        solver = Solver(made, known=20)
        at_lengths(solver, make(made), lengths, n_examples=9)
        asked.append([ids for ids in solver.asked if ids.shape[1] == made.seq_len_at(7)])
    sizes = [len(ids) for ids in asked[0]]
    assert sizes == [6, 3], "batches of val_batch_size"
    for other in asked[1:]:
        for one, another in zip(asked[0], other, strict=True):
            torch.testing.assert_close(one, another)
    solver = Solver(task, known=20)
    at_lengths(solver, make(task, seed=4), [7], n_examples=9)
    assert not torch.equal(solver.asked[0], asked[0][0])


def test_a_length_beyond_the_table_is_out_of_reach_and_the_others_are_scored():
    task = CopyTask(20, 4)
    model = TinyAttentionLM(task.vocab_size, 8, 2, 10, positions=LearnedPositionalEmbedding(10, 8))
    near, edge, far = at_lengths(model, make(task), [4, 5, 6], n_examples=8)
    assert near.out_of_reach is edge.out_of_reach is None
    assert (far.accuracy, far.exact_match) == (None, None)
    assert "LearnedPositionalEmbedding has 10 positions and cannot place 12 tokens" in far.out_of_reach


def test_a_length_that_the_task_does_not_have_is_out_of_reach():
    task = CopyTask(n_symbols=5, length=4, distinct=True)
    far, near, none = at_lengths(Solver(task, known=9), make(task), [6, 5, 0], n_examples=8)
    assert near == AtLength(5, 1.0, 1.0, None, 1.0)
    assert "only 5" in far.out_of_reach
    assert "\n" not in far.out_of_reach
    assert none.out_of_reach is not None


def test_a_longer_copy_is_scored_and_the_model_stays_as_it_was():
    task = CopyTask(20, 4)
    model = TinyAttentionLM(task.vocab_size, 8, 2, 8, positions=SinusoidalPositionalEmbedding(8, 8), dropout=0.9)
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (at,) = at_lengths(model, make(task), [9], n_examples=8)
    assert model.training
    assert (model.max_context_length, model.positions.max_context_length) == (8, 8)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in model.parameters())
    # By hand, with a model that was built longer, and without dropout.
    longer = TinyAttentionLM(task.vocab_size, 8, 2, 18, positions=SinusoidalPositionalEmbedding(18, 8), dropout=0.9)
    longer.load_state_dict(model.state_dict())
    tokens, targets = zip(*make(task).examples(8, [9]).batches, strict=True)
    with torch.no_grad():
        expected = score(longer.eval()(torch.cat(tokens)), torch.cat(targets)).means()
    written = torch.stack([*generate(longer, torch.cat(tokens)[:, :10], 9)], dim=1)
    free = float((written == torch.cat(targets)[:, 9:]).float().mean())
    wanted = AtLength(9, pytest.approx(expected["accuracy"]), pytest.approx(expected["exact_match"]), None, free)
    assert at == wanted._replace(free_accuracy=pytest.approx(free))


def test_the_random_state_is_not_touched():
    task = CopyTask(20, 4)
    positions = SinusoidalPositionalEmbedding(8, 8, train_offset="random")
    model = TinyAttentionLM(task.vocab_size, 8, 2, 8, positions=positions, dropout=0.5)
    before = torch.get_rng_state()
    at_lengths(model, make(task), [4, 6], n_examples=8)
    assert torch.equal(torch.get_rng_state(), before)


def test_no_examples_are_refused():
    task = CopyTask(20, 4)
    with pytest.raises(ValueError, match="n_examples 0"):
        at_lengths(Solver(task, known=4), make(task), [4], n_examples=0)
