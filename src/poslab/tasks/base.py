"""The interface of every task: a vocabulary, whole batches from a random generator, and where each answer stands."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

IGNORED = -100
"""The target of a position that counts in neither loss nor accuracy (torch's ``ignore_index``)."""


class Batch(NamedTuple):
    """Tokens that the model sees and the token it should name at each position; both (B, T)."""

    tokens: Int64[np.ndarray, "b t"]
    targets: Int64[np.ndarray, "b t"]


class Task(ABC):
    """A way to make sequences whose targets can be deduced from what the model has seen.

    Constructor arguments are the options of the task's yaml file.

    Args:
        length: the longest that training sees, in the task's own unit (symbols to copy, say).
        min_length: the shortest; then each batch draws one length from ``min_length .. length``. None: always
            ``length``.

    Raises:
        ValueError: a range that is empty, or a length that the task does not have.
    """

    vocab_size: int
    """V: every token id that `sample` makes lies in ``[0, V)``."""

    def __init__(self, length: int, min_length: int | None = None) -> None:
        shortest = length if min_length is None else min_length
        check_at_least(1, length=length, min_length=shortest)
        if shortest > length:
            raise ValueError(f"min_length {shortest} is above length {length}; give a range that holds something")
        self.lengths = range(shortest, length + 1)
        self.check_length(shortest)
        self.check_length(length)

    @property
    def seq_len(self) -> int:
        """T: the most tokens that the model sees in training."""
        return self.seq_len_at(self.lengths[-1])

    @abstractmethod
    def seq_len_at(self, length: int) -> int:
        """T at one length: the tokens that the model sees."""

    def check_length(self, length: int) -> None:
        """Refuse a length that the task cannot make.

        Raises:
            ValueError: names the length and the reason.
        """
        check_at_least(1, length=length)

    def sample(self, rng: np.random.Generator, batch_size: int, length: int | None = None) -> Batch:
        """One batch, made whole, of one length. The same state of ``rng`` gives the same batch.

        Args:
            rng: where every random number comes from.
            batch_size: B.
            length: of every row, also beyond those of training; None draws one that training sees.

        Raises:
            ValueError: a length that the task does not have.
        """
        if length is None:
            # A single length is not drawn, so that a range of one makes the same batches as no range.
            length = int(rng.choice(self.lengths)) if len(self.lengths) > 1 else self.lengths[0]
        self.check_length(length)
        return self.sample_at(rng, batch_size, length)

    @abstractmethod
    def sample_at(self, rng: np.random.Generator, batch_size: int, length: int) -> Batch:
        """A batch of ``batch_size`` rows of one length."""

    @abstractmethod
    def token_label(self, token: int) -> str:
        """A short name for a token id, to be read on the axes of a heat map."""

    @abstractmethod
    def answer_cells(self, tokens: Int64[np.ndarray, " t"]) -> Bool[np.ndarray, "t t"]:
        """For one sequence, the cells (query, key) where a key holds the token that the query has to name.

        Rows of queries that count in no loss, or whose answer stands nowhere, are empty.
        """

    @abstractmethod
    def deduce(self, tokens: Int64[np.ndarray, " t"]) -> Int64[np.ndarray, " t"]:
        """The oracle: the targets (T,) of one sequence, found from its tokens alone, each from its own prefix."""

    def prompt(self, symbols: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " t"]:
        """The tokens that ask the task about ``symbols``, with those that the task puts around them."""
        return symbols

    def answer_length(self, prompt: Int64[np.ndarray, " t"]) -> int:
        """How many tokens answer a prompt; 0 for one that holds its answer already."""
        return len(prompt)

    def completed(self, prompt: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " t"]:
        """The prompt and the oracle's answer to it without its last token (T,), as a row of a batch has it."""
        tokens = prompt
        for _ in range(self.answer_length(prompt) - 1):
            following = self.deduce(tokens)[-1]
            if following == IGNORED:
                break
            tokens = np.append(tokens, following)
        return tokens

    def encode(self, text: str) -> Int64[np.ndarray, " n"]:
        """Token ids from labels with spaces between, the way `token_label` writes them.

        Raises:
            ValueError: a label that is none; names it and some that there are.
        """
        ids = {self.token_label(token): token for token in range(self.vocab_size)}
        unknown = [label for label in text.split() if label not in ids]
        if unknown:
            labels = list(ids)
            shown = ", ".join(labels if len(labels) <= 12 else [*labels[:5], "...", *labels[-5:]])
            raise ValueError(f"'{unknown[0]}' is no token of this task; there are: {shown}")
        return np.array([ids[label] for label in text.split()], dtype=np.int64)


def check_at_least(minimum: int, **sizes: int) -> None:
    """Refuse sizes that leave a task empty.

    Raises:
        ValueError: a size below ``minimum``; names it.
    """
    for name, size in sizes.items():
        if size < minimum:
            raise ValueError(f"task.{name} {size} leaves the task empty; use at least {minimum}")
