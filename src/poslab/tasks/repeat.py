"""Repeat one token."""

import numpy as np
from jaxtyping import Bool, Int64

from poslab.tasks.base import Batch, Task, check_at_least


class RepeatTask(Task):
    """One random token per row, again and again. Positions do not matter: the answer is the current token.

    For ``seq_len`` 4 the model sees the first row and has to name the second::

        tokens    9  9  9  9
        targets   9  9  9  9

    Args:
        n_symbols: V, tokens a row is drawn from.
        seq_len: T, tokens the model sees; the longest of training.
        min_seq_len: the shortest of training, each batch draws one length; None: always ``seq_len``.

    Raises:
        ValueError: a size that leaves the task empty.
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

    def token_label(self, token: int) -> str:
        return str(token)

    def answer_cells(self, tokens: Int64[np.ndarray, " t"]) -> Bool[np.ndarray, "t t"]:
        # In a row of this task all tokens are equal; in a prompt they may not be.
        return np.tri(len(tokens), dtype=bool) & (tokens[:, None] == tokens)

    def deduce(self, tokens: Int64[np.ndarray, " t"]) -> Int64[np.ndarray, " t"]:
        return np.array([tokens[: query + 1][-1] for query in range(len(tokens))])
