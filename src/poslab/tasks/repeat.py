"""Repeat one token."""

import numpy as np
from jaxtyping import Bool, Int64

from poslab.tasks.base import Batch, Task, check_at_least


class RepeatTask(Task):
    """One random token per row, repeated. The target is always the current token, so positions do not matter.

    For ``seq_len`` 4 the model reads ``tokens`` and has to predict ``targets``::

        tokens    9  9  9  9
        targets   9  9  9  9

    Args:
        n_symbols: V, the number of different tokens.
        seq_len: T, the number of tokens that the model reads, the largest in training.
        min_seq_len: the smallest T in training, where each batch draws one; None: always ``seq_len``.

    Raises:
        ValueError: a size that is too small; names it.
    """

    def __init__(self, n_symbols: int = 64, seq_len: int = 12, min_seq_len: int | None = None) -> None:
        check_at_least(2, n_symbols=n_symbols)
        check_at_least(1, seq_len=seq_len)
        self.n_symbols = n_symbols
        self.vocab_size = n_symbols
        super().__init__(seq_len, min_seq_len)

    def seq_len_at(self, length: int) -> int:
        return length

    def sample_at(self, rng: np.random.Generator, batch_size: int, length: int) -> Batch:
        symbols = rng.integers(self.n_symbols, size=(batch_size, 1))
        rows = np.repeat(symbols, length + 1, axis=1)
        return Batch(rows[:, :-1], rows[:, 1:])

    def answer_cells(self, tokens: Int64[np.ndarray, " t"]) -> Bool[np.ndarray, "t t"]:
        # All tokens of a row are equal, but those of a prompt may differ.
        return np.tri(len(tokens), dtype=bool) & (tokens[:, None] == tokens)

    def deduce(self, tokens: Int64[np.ndarray, " t"]) -> Int64[np.ndarray, " t"]:
        return tokens.copy()
