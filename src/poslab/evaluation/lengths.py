"""Score a model at several lengths, including lengths outside the training range."""

from collections.abc import Collection
from typing import NamedTuple

import torch

from poslab.data.module import SeedData
from poslab.evaluation.free_running import free_accuracy
from poslab.evaluation.metrics import score_all
from poslab.model import LanguageModel
from poslab.tasks import Task

FREE_TOKENS = 65_536
LEAST_FREE_EXAMPLES = 64
"""Free-running accuracy is measured on examples with `FREE_TOKENS` tokens in total, but on at least this many."""


class AtLength(NamedTuple):
    """The scores at one evaluation length, or the reason why there are none.

    Attributes:
        length: in the unit of the task (for example symbols to copy).
        accuracy: next-token accuracy: share of target tokens that are right after the true tokens before them; None if
            the length is out of reach.
        exact_match: share of rows whose target tokens are all right; None if the length is out of reach. Reading the
            true tokens or its own predictions makes no difference here: up to the first error they are the same.
        out_of_reach: one line that says why the model or the task does not support this length, else None.
        free_accuracy: share of target tokens that are right if the model reads its own predictions instead of the true
            tokens (`free_running`); only for lengths past the training range, else None.
    """

    length: int
    accuracy: float | None
    exact_match: float | None
    out_of_reach: str | None
    free_accuracy: float | None = None

    def scores(self) -> dict[str, float]:
        """The scores that exist, by name."""
        found = {name: getattr(self, name) for name in ("accuracy", "exact_match", "free_accuracy")}
        return {name: value for name, value in found.items() if value is not None}


def at_lengths(model: LanguageModel, data: SeedData, lengths: Collection[int], n_examples: int) -> list[AtLength]:
    """Score a model at each length, on a set of examples that depends only on seed, length and ``n_examples``.

    A length is out of reach if the task or the position scheme does not support it. The model is scored in evaluation
    mode and is not changed.

    Args:
        model: on any device; if its context is too short for a length, an extended copy of it is scored.
        data: generates the examples.
        lengths: in the unit of the task.
        n_examples: number of examples at each length.

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


def model_for_length(model: LanguageModel, task: Task, length: int) -> LanguageModel:
    """The model that scores this length: itself if its context is long enough, else an extended copy.

    Raises:
        ValueError: the task or the position scheme does not support this length.
    """
    task.check_length(length)
    return model.extended(task.seq_len_at(length))


def scored_freely(task: Task, length: int) -> bool:
    """Whether free-running accuracy is measured at this length: it is longer than all training lengths."""
    return length > task.lengths[-1]


def _at_length(model: LanguageModel, data: SeedData, length: int, n_examples: int) -> AtLength:
    task = data.task
    try:
        longer = model_for_length(model, task, length)
    except ValueError as reason:
        return AtLength(length, None, None, " ".join(str(reason).split()))
    means = score_all(longer, data.examples(n_examples, [length]).batches).means()
    free = None
    if scored_freely(task, length):
        few = min(n_examples, max(LEAST_FREE_EXAMPLES, FREE_TOKENS // task.seq_len_at(length)))
        # The first of the same examples.
        free = free_accuracy(longer, data.examples(few, [length]).batches)
    return AtLength(length, means["accuracy"], means["exact_match"], None, free)
