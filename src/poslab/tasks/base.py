"""The interface of all tasks: vocabulary, random batches, and the tokens from which each answer can be read."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

IGNORED = -100
"""Target of positions that are ignored in loss and accuracy (torch's ``ignore_index``)."""


class Batch(NamedTuple):
    """The tokens that the model reads and the target at each position; both (B, T)."""

    tokens: Int64[np.ndarray, "b t"]
    targets: Int64[np.ndarray, "b t"]


class Task(ABC):
    """Base class of the tasks. A task generates sequences in which every target is determined by the tokens before it.

    The constructor arguments are the options in the task's yaml file.

    Args:
        length: the longest length in training, in the unit of the task (for example symbols to copy).
        min_length: the shortest length in training; each batch draws one length from ``min_length .. length``. None:
            always ``length``.

    Raises:
        ValueError: an empty range, or a length that the task does not support; names the numbers.
    """

    vocab_size: int
    """V: all token ids are in ``[0, V)``."""

    def __init__(self, length: int, min_length: int | None = None) -> None:
        shortest = length if min_length is None else min_length
        check_at_least(1, length=length, min_length=shortest)
        if shortest > length:
            raise ValueError(f"min_length {shortest} is above length {length}; use a min_length of at most {length}")
        self.lengths = range(shortest, length + 1)
        self.check_length(shortest)
        self.check_length(length)

    @property
    def seq_len(self) -> int:
        """T of the longest training sequence, in tokens."""
        return self.seq_len_at(self.lengths[-1])

    @abstractmethod
    def seq_len_at(self, length: int) -> int:
        """T, the number of tokens that the model reads, for one length."""

    def check_length(self, length: int) -> None:
        """Raise if the task does not support a length.

        Raises:
            ValueError: names the length and the reason.
        """
        check_at_least(1, length=length)

    def sample(self, rng: np.random.Generator, batch_size: int, length: int | None = None) -> Batch:
        """Generate one batch; all rows have the same length. The same state of ``rng`` gives the same batch.

        Args:
            rng: source of all random numbers.
            batch_size: B.
            length: length of every row; it may be outside the training range. None draws one from the training range.

        Raises:
            ValueError: a length that the task does not support.
        """
        if length is None:
            length = self.draw_length(rng)
        self.check_length(length)
        return self.sample_at(rng, batch_size, length)

    def draw_length(self, rng: np.random.Generator) -> int:
        """Draw a length of the training range."""
        # A single length is not drawn, so that min_length=length gives the same batches as min_length=None.
        return int(rng.choice(self.lengths)) if len(self.lengths) > 1 else self.lengths[0]

    @abstractmethod
    def sample_at(self, rng: np.random.Generator, batch_size: int, length: int) -> Batch:
        """Generate a batch of ``batch_size`` rows of one length, which `sample` has checked."""

    def token_label(self, token: int) -> str:
        """Short name of a token id, for the axes of heat maps and for prompts; by default its number."""
        return str(token)

    @abstractmethod
    def answer_cells(self, tokens: Int64[np.ndarray, " t"]) -> Bool[np.ndarray, "t t"]:
        """Cells (query, key), (T, T), in which the key's token is the target of the query, for one sequence.

        Rows without a True: the query's target is ignored, or its target occurs nowhere before.
        """

    @abstractmethod
    def deduce(self, tokens: Int64[np.ndarray, " t"]) -> Int64[np.ndarray, " t"]:
        """The oracle: compute the targets (T,) of one sequence, each from the tokens up to its position only."""

    def prompt(self, symbols: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " t"]:
        """Build the prompt for ``symbols``: adds the tokens that the task puts around them, such as separators."""
        return symbols

    def answer_length(self, prompt: Int64[np.ndarray, " t"]) -> int:
        """Number of tokens in the answer to a prompt; 0 if the prompt already contains the whole answer."""
        return len(prompt)

    def completed(self, prompt: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " t"]:
        """Append the oracle's answer except its last token, (T,): the tokens of a batch row for this prompt."""
        tokens = prompt
        for _ in range(self.answer_length(prompt) - 1):
            following = self.deduce(tokens)[-1]
            if following == IGNORED:
                break
            tokens = np.append(tokens, following)
        return tokens

    def encode(self, text: str) -> Int64[np.ndarray, " n"]:
        """Convert labels, as written by `token_label` and separated by spaces, to token ids (N,).

        Raises:
            ValueError: an unknown label; names it and some of the labels.
        """
        ids = {self.token_label(token): token for token in range(self.vocab_size)}
        unknown = [label for label in text.split() if label not in ids]
        if unknown:
            labels = list(ids)
            shown = ", ".join(labels if len(labels) <= 12 else [*labels[:5], "...", *labels[-5:]])
            raise ValueError(f"'{unknown[0]}' is not a token of this task; the tokens are: {shown}")
        return np.array([ids[label] for label in text.split()], dtype=np.int64)


def check_at_least(minimum: int, **sizes: int) -> None:
    """Raise if one of the named sizes is too small.

    Raises:
        ValueError: a size below ``minimum``; names it.
    """
    for name, size in sizes.items():
        if size < minimum:
            raise ValueError(f"task.{name} {size} is too small; use at least {minimum}")
