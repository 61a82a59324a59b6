"""Recall the value that was paired with a key."""

import numpy as np
from jaxtyping import Bool, Int64

from poslab.tasks.base import IGNORED, Batch, Task, check_at_least
from poslab.tasks.strings import cells_after_first, draw_strings


class AssociativeRecallTask(Task):
    """Key/value pairs, followed by queries: keys of the row, after each of which the model has to predict its value.

    For two pairs and two queries, the model reads ``tokens`` and has to predict ``targets`` (``.``: ignored)::

        tokens    k5  v9  k3  v1  k3  v1  k5
        targets   .   .   .   .   v1  .   v9

    The keys of a row are distinct, so every answer is determined at every length. Values are drawn independently.
    Queries are drawn from the row's keys with replacement.

    Token ids: keys ``0 .. n_keys - 1`` (labels k0, k1, ..), then values (labels v0, v1, ..).

    Source: Arora et al. 2023 (2312.04927), multi-query associative recall; here the queries follow one another without
    gaps.

    Args:
        n_keys: number of different keys; at least ``length``.
        n_values: number of different values.
        length: n, the number of pairs, the largest in training. The model reads ``T = 2 n + 2 q - 1`` tokens.
        min_length: the smallest number of pairs in training, where each batch draws one; None: always ``length``.
        n_queries: q, the number of queries; None: as many as pairs.

    Raises:
        ValueError: a size that is too small, or more pairs than keys; names the numbers.
    """

    def __init__(
        self,
        n_keys: int = 32,
        n_values: int = 32,
        length: int = 6,
        min_length: int | None = None,
        n_queries: int | None = None,
    ) -> None:
        check_at_least(1, n_keys=n_keys)
        check_at_least(2, n_values=n_values)
        if n_queries is not None:
            check_at_least(1, n_queries=n_queries)
        self.n_keys = n_keys
        self.n_values = n_values
        self.n_queries = n_queries
        self.vocab_size = n_keys + n_values
        super().__init__(length, min_length)

    def check_length(self, length: int) -> None:
        super().check_length(length)
        if length > self.n_keys:
            raise ValueError(
                f"length {length} needs {length} distinct keys, but there are only {self.n_keys} distinct keys; "
                f"use a smaller length or at least task.n_keys={length}"
            )

    def queries_at(self, length: int) -> int:
        """q, the number of queries in a row with ``length`` pairs."""
        return length if self.n_queries is None else self.n_queries

    def seq_len_at(self, length: int) -> int:
        # Without the last value: it is a target only.
        return 2 * length + 2 * self.queries_at(length) - 1

    def sample_at(self, rng: np.random.Generator, batch_size: int, length: int) -> Batch:
        keys = draw_strings(rng, self.n_keys, batch_size, length, distinct=True)
        values = self.n_keys + rng.integers(self.n_values, size=(batch_size, length))
        queried = rng.integers(length, size=(batch_size, self.queries_at(length)))
        queries, answers = (np.take_along_axis(part, queried, axis=1) for part in (keys, values))
        rows = np.concatenate((_interleave(keys, values), _interleave(queries, answers)), axis=1)
        targets = rows[:, 1:].copy()
        targets[:, : 2 * length] = IGNORED
        targets[:, 2 * length + 1 :: 2] = IGNORED
        return Batch(rows[:, :-1], targets)

    def token_label(self, token: int) -> str:
        return f"k{token}" if token < self.n_keys else f"v{token - self.n_keys}"

    def answer_cells(self, tokens: Int64[np.ndarray, " t"]) -> Bool[np.ndarray, "t t"]:
        """Cells (T, T): for each query, the position of the value after the first occurrence of the queried key."""
        return cells_after_first(tokens) & (tokens < self.n_keys)[:, None]

    def deduce(self, tokens: Int64[np.ndarray, " t"]) -> Int64[np.ndarray, " t"]:
        targets = np.full(len(tokens), IGNORED)
        value_of: dict[int, int] = {}
        key = None
        for place, token in enumerate(tokens.tolist()):
            if token >= self.n_keys:
                if key is not None:
                    value_of.setdefault(key, token)
            elif token in value_of:
                targets[place] = value_of[token]
            key = token if token < self.n_keys else None
        return targets

    def answer_length(self, prompt: Int64[np.ndarray, " t"]) -> int:
        """Always 1: the value of the key at the end of the prompt."""
        return 1


def _interleave(first: Int64[np.ndarray, "b n"], second: Int64[np.ndarray, "b n"]) -> Int64[np.ndarray, "b m"]:
    """Interleave the columns ``a1 a2 ..`` and ``b1 b2 ..`` to ``a1 b1 a2 b2 ..``, (B, 2 n)."""
    return np.stack((first, second), axis=2).reshape(len(first), -1)
