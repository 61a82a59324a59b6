"""Accuracy of a model that reads its own predictions, held against generation token by token."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poslab.evaluation.free_running import free_accuracy, free_running
from poslab.evaluation.generation import generate
from poslab.evaluation.lengths import at_lengths
from poslab.evaluation.metrics import score
from poslab.model import LanguageModel, TinyAttentionLM
from poslab.model.cache import LayerCache
from poslab.positions import FIRE, NoPositions, RotaryPositions, SinusoidalPositionalEmbedding
from poslab.tasks.associative_recall import AssociativeRecallTask
from poslab.tasks.base import IGNORED, Task
from poslab.tasks.copy import CopyTask
from support.two_models import some_data


def a_model(task: Task, positions: nn.Module, length: int) -> TinyAttentionLM:
    torch.manual_seed(0)
    model = TinyAttentionLM(task.vocab_size, 16, 2, task.seq_len_at(length), positions=positions).eval()
    with torch.no_grad():
        # As initialised, it would write the same token everywhere.
        model.token_embedding.embedding.weight.normal_(std=2.0)
    return model


def rows(task: Task, n: int, length: int) -> tuple[Tensor, Tensor]:
    batch = task.sample(np.random.default_rng(0), n, length)
    return torch.from_numpy(batch.tokens), torch.from_numpy(batch.targets)


@pytest.mark.parametrize("positions", [SinusoidalPositionalEmbedding(14, 16), RotaryPositions(8), FIRE(2)])
def test_an_answer_at_the_end_is_what_generation_writes(positions: nn.Module) -> None:
    task = CopyTask(6, 5)
    tokens, targets = rows(task, 40, 7)
    model = a_model(task, positions, 7)
    written = torch.stack(list(generate(model, tokens[:, :8], 7, use_cache=False)), dim=1)
    found = free_running(model, tokens, targets)
    assert found[:, 7:].equal(written)
    assert bool((found[:, :7] == IGNORED).all())
    assert not found[:, 7:].equal(model(tokens).argmax(-1)[:, 7:]), "or its own predictions make no difference"
    assert free_accuracy(model, [(tokens, targets)]) == pytest.approx((written == targets[:, 7:]).float().mean().item())


def test_tokens_that_are_not_predicted_are_read_as_they_are() -> None:
    """The queries of a recall task: by the whole sequence again for every token, without a cache."""
    task = AssociativeRecallTask(n_keys=6, n_values=5, length=3)
    tokens, targets = rows(task, 30, 3)
    model = a_model(task, SinusoidalPositionalEmbedding(20, 16), 3)
    found = free_running(model, tokens, targets)
    for row, target, predicted in zip(tokens.tolist(), targets.tolist(), found.tolist(), strict=True):
        read = row[:1]
        for place in range(len(row)):
            with torch.no_grad():
                written = int(model(torch.tensor([read]))[0, -1].argmax())
            if target[place] != IGNORED:
                assert predicted[place] == written
            if place + 1 < len(row):
                read.append(written if target[place] != IGNORED else row[place + 1])


class CountingUp(LanguageModel):
    """Writes the next number, except after a 4, where it is wrong by 1: a wrong token spoils all that follow it."""

    def __init__(self) -> None:
        super().__init__(20, 4, 20, NoPositions(), None)
        self.head = self.make_head(tie_embeddings=False)

    def body_parts(self) -> Mapping[str, nn.Module]:
        return {}

    def new_cache(self) -> list[LayerCache]:
        return []

    def forward(self, ids: Tensor) -> Tensor:
        return nn.functional.one_hot(ids + 1 + (ids == 4), 20).float()

    def read(self, ids: Tensor, cache: list[LayerCache]) -> Tensor:
        return self(ids)


def test_one_error_is_one_error_after_the_true_tokens_and_many_after_its_own() -> None:
    tokens = torch.arange(10)[None]
    targets = tokens + 1
    model = CountingUp().eval()
    assert score(model(tokens), targets).means()["accuracy"] == pytest.approx(9 / 10)
    # Right are 1 to 4; then 6 for 5, 7 for 6, and so on.
    assert free_running(model, tokens, targets).tolist() == [[1, 2, 3, 4, 6, 7, 8, 9, 10, 11]]
    assert free_accuracy(model, [(tokens, targets)]) == pytest.approx(4 / 10)


def test_only_lengths_past_training_are_scored_freely_and_on_the_first_examples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = CopyTask(6, 5, min_length=4)
    data = some_data(task)
    model = a_model(task, SinusoidalPositionalEmbedding(10, 16), 5)
    near, edge, far = at_lengths(model, data, [3, 5, 6], n_examples=70)
    assert near.free_accuracy is edge.free_accuracy is None
    assert far.free_accuracy == free_accuracy(model.extended(12), data.examples(70, [6]).batches)
    monkeypatch.setattr("poslab.evaluation.lengths.FREE_TOKENS", 10)
    (few,) = at_lengths(model, data, [6], n_examples=70)
    first = data.examples(70, [6]).batches
    both = [torch.cat(part)[:64] for part in zip(*first, strict=True)]
    assert few.free_accuracy == free_accuracy(model.extended(12), [(both[0], both[1])])
    assert few.scores().keys() == {"accuracy", "exact_match", "free_accuracy"}
