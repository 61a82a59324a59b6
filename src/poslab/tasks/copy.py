"""Copy a random string after a separator."""

import numpy as np
from jaxtyping import Bool, Int64

from poslab.tasks.base import IGNORED, Batch, Task, check_at_least


class CopyTask(Task):
    """``x1 .. xn SEP x1 .. xn``: after the separator, write the string again. Positions decide here.

    For n = 3 the model sees the first row and has to name the second (``.`` counts in no loss)::

        tokens    7  2  5  SEP  7  2
        targets   .  .  .   7   2  5

    Args:
        n_symbols: symbols a string is drawn from; the separator is one token more.
        length: n, symbols per string. The model sees ``T = 2 n`` tokens.
    """

    def __init__(self, n_symbols: int = 64, length: int = 6) -> None:
        check_at_least(2, n_symbols=n_symbols)
        check_at_least(1, length=length)
        self.n_symbols = n_symbols
        self.length = length
        self.separator = n_symbols
        self.vocab_size = n_symbols + 1
        self.seq_len = 2 * length

    def sample(self, rng: np.random.Generator, batch_size: int) -> Batch:
        strings = rng.integers(self.n_symbols, size=(batch_size, self.length))
        separators = np.full((batch_size, 1), self.separator)
        rows = np.concatenate((strings, separators, strings), axis=1)
        targets = rows[:, 1:].copy()
        targets[:, : self.length] = IGNORED
        return Batch(rows[:, :-1], targets)

    def token_label(self, token: int) -> str:
        return "SEP" if token == self.separator else str(token)

    def answer_cells(self, tokens: Int64[np.ndarray, " t"]) -> Bool[np.ndarray, "t t"]:
        cells = np.zeros((len(tokens), len(tokens)), dtype=bool)
        source = np.arange(self.length)
        cells[self.length + source, source] = True
        return cells

    def deduce(self, tokens: Int64[np.ndarray, " t"]) -> Int64[np.ndarray, " t"]:
        targets = np.full(len(tokens), IGNORED)
        start = int(np.flatnonzero(tokens == self.separator)[0])
        for query in range(start, len(tokens)):
            targets[query] = tokens[: query + 1][query - start]
        return targets
