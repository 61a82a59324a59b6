"""How well a model does at lengths that it was not trained on."""

from collections.abc import Collection
from typing import NamedTuple

import torch

from poslab.data.module import SeedData
from poslab.evaluation.metrics import score_all
from poslab.model import LanguageModel


class AtLength(NamedTuple):
    """The scores at one evaluation length, or why there are none.

    Attributes:
        length: in the task's own unit (symbols to copy, say).
        accuracy: per token; None: out of reach.
        exact_match: whole answers right; None: out of reach.
        out_of_reach: why the model or the task does not have this length, in one line.
    """

    length: int
    accuracy: float | None
    exact_match: float | None
    out_of_reach: str | None


def at_lengths(model: LanguageModel, data: SeedData, lengths: Collection[int], n_examples: int) -> list[AtLength]:
    """Score a model at each length, on a fixed set that follows the seed, the length and ``n_examples`` alone.

    A length that the task cannot make, or that the position scheme cannot place, is out of reach. The model is in
    evaluation mode meanwhile and is not changed.

    Args:
        model: on any device; itself where it reaches far enough, else a longer copy is scored.
        data: makes the sets.
        lengths: in the task's own unit.
        n_examples: at each length.

    Raises:
        ValueError: ``n_examples < 1``.
    """
    if n_examples < 1:
        raise ValueError(f"n_examples {n_examples} must be at least 1")
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return [_at_length(model, data, length, n_examples) for length in lengths]
    finally:
        model.train(training)


def _at_length(model: LanguageModel, data: SeedData, length: int, n_examples: int) -> AtLength:
    try:
        data.task.check_length(length)
        longer = model.extended(data.task.seq_len_at(length))
    except ValueError as reason:
        return AtLength(length, None, None, " ".join(str(reason).split()))
    means = score_all(longer, data.examples(n_examples, [length]).batches).means()
    return AtLength(length, means["accuracy"], means["exact_match"], None)
