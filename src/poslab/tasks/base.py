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
    """

    vocab_size: int
    """V: every token id that `sample` makes lies in ``[0, V)``."""

    seq_len: int
    """T: tokens the model sees."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, batch_size: int) -> Batch:
        """One batch, made whole. The same state of ``rng`` gives the same batch."""

    @abstractmethod
    def token_label(self, token: int) -> str:
        """A short name for a token id, to be read on the axes of a heat map."""

    @abstractmethod
    def answer_cells(self, tokens: Int64[np.ndarray, " t"]) -> Bool[np.ndarray, "t t"]:
        """For one sequence, the cells (query, key) where a key holds the token that the query has to name.

        Rows of queries that count in no loss are empty.
        """

    @abstractmethod
    def deduce(self, tokens: Int64[np.ndarray, " t"]) -> Int64[np.ndarray, " t"]:
        """The oracle: the targets (T,) of one sequence, found from its tokens alone, each from its own prefix."""


def check_at_least(minimum: int, **sizes: int) -> None:
    """Refuse sizes that leave a task empty.

    Raises:
        ValueError: a size below ``minimum``; names it.
    """
    for name, size in sizes.items():
        if size < minimum:
            raise ValueError(f"task.{name} {size} leaves the task empty; use at least {minimum}")
