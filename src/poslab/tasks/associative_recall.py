"""Name the value that a key was paired with."""

import numpy as np
from jaxtyping import Bool, Int64

from poslab.tasks.base import IGNORED, Batch, Task, check_at_least
from poslab.tasks.strings import draw_strings


class AssociativeRecallTask(Task):
    """Pairs of a key and a value, then some of the keys again, each to be followed by its value.

    For two pairs and two queries the model sees the first row and has to name the second (``.`` counts in no loss)::

        tokens    k5  v9  k3  v1  k3  v1  k5
        targets   .   .   .   .   v1  .   v9

    The keys of a row are distinct, so every queried value can be deduced, at every length. Values are drawn freely, and
    each query is any of the row's keys, asked before or not. Source: Arora et al. 2023 (arXiv 2312.04927), multi-query
    associative recall; here queries follow one another, with nothing between that could overwrite a pair.

    Token ids: keys ``0 .. n_keys - 1``, written k0, k1, .., then values, written v0, v1, ...

    Args:
        n_keys: keys there are; at least as many as pairs.
        n_values: values there are.
        length: n, pairs; the most of training. The model sees ``T = 2 n + 2 q - 1`` tokens for q queries.
        min_length: the fewest pairs of training, each batch draws one number; None: always ``length``.
        n_queries: q, keys that are asked for; None: as many as pairs.

    Raises:
        ValueError: a size that leaves the task empty, or more pairs than keys.
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
                f"length {length}, pairs with a key each, but there are only {self.n_keys} distinct keys; "
                f"use a smaller length or at least task.n_keys={length}"
            )

    def queries_at(self, length: int) -> int:
        """q at one length: the keys that are asked for."""
        return length if self.n_queries is None else self.n_queries

    def seq_len_at(self, length: int) -> int:
        # The last value is only ever a target.
        return 2 * length + 2 * self.queries_at(length) - 1

    def sample_at(self, rng: np.random.Generator, batch_size: int, length: int) -> Batch:
        keys = draw_strings(rng, self.n_keys, batch_size, length, distinct=True)
        values = self.n_keys + rng.integers(self.n_values, size=(batch_size, length))
        asked = rng.integers(length, size=(batch_size, self.queries_at(length)))
        queries, answers = (np.take_along_axis(part, asked, axis=1) for part in (keys, values))
        rows = np.concatenate((_in_turn(keys, values), _in_turn(queries, answers)), axis=1)
        targets = rows[:, 1:].copy()
        targets[:, : 2 * length] = IGNORED
        targets[:, 2 * length + 1 :: 2] = IGNORED
        return Batch(rows[:, :-1], targets)

    def token_label(self, token: int) -> str:
        return f"k{token}" if token < self.n_keys else f"v{token - self.n_keys}"

    def answer_cells(self, tokens: Int64[np.ndarray, " t"]) -> Bool[np.ndarray, "t t"]:
        """The value of the queried pair, where it stood first."""
        cells = np.zeros((len(tokens), len(tokens)), dtype=bool)
        first = (tokens[:, None] == tokens[None, :]).argmax(axis=1)
        queries = np.flatnonzero((tokens < self.n_keys) & (first < np.arange(len(tokens))))
        cells[queries, first[queries] + 1] = True
        return cells

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
        """One: the value of the key that the prompt ends with."""
        return 1


def _in_turn(first: Int64[np.ndarray, "b n"], second: Int64[np.ndarray, "b n"]) -> Int64[np.ndarray, "b m"]:
    """``a1 b1 a2 b2 ..`` from ``a1 a2 ..`` and ``b1 b2 ..``."""
    return np.stack((first, second), axis=2).reshape(len(first), -1)
