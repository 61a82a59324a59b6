"""Go on with a string from a place within it: name what followed this token before."""

import numpy as np
from jaxtyping import Bool, Int64

from poslab.tasks.base import IGNORED, Batch, Task, check_at_least
from poslab.tasks.strings import draw_strings


class InductionTask(Task):
    """``x1 .. x2n``, all distinct, then ``xr`` for a random r and what followed it, n tokens long.

    For n = 2 the model sees the first row and has to name the second (``.`` counts in no loss); here r is 2::

        tokens    7  2  5  9  2  5
        targets   .  .  .  .  5  9

    Each target is what followed the current token before. How far back that is differs from row to row: r is any of
    ``1 .. n`` and each distance is right in one row of n, so the token has to be found by what it is. Source: Olsson et
    al. 2022 (arXiv 2209.11895), induction heads.

    Args:
        n_symbols: V, symbols a row is drawn from; at least twice ``length``.
        length: n, tokens to go on with; the longest of training. The model sees ``T = 3 n`` tokens.
        min_length: the shortest of training, each batch draws one length; None: always ``length``.

    Raises:
        ValueError: a size that leaves the task empty, or more distinct symbols than there are.
    """

    def __init__(self, n_symbols: int = 64, length: int = 6, min_length: int | None = None) -> None:
        check_at_least(2, n_symbols=n_symbols)
        self.n_symbols = n_symbols
        self.vocab_size = n_symbols
        super().__init__(length, min_length)

    def check_length(self, length: int) -> None:
        super().check_length(length)
        if 2 * length > self.n_symbols:
            raise ValueError(
                f"length {length} begins with {2 * length} distinct symbols, but there are only {self.n_symbols}; "
                f"use a smaller length or at least task.n_symbols={2 * length}"
            )

    def seq_len_at(self, length: int) -> int:
        return 3 * length

    def sample_at(self, rng: np.random.Generator, batch_size: int, length: int) -> Batch:
        strings = draw_strings(rng, self.n_symbols, batch_size, 2 * length, distinct=True)
        start = rng.integers(length, size=(batch_size, 1))
        again = np.take_along_axis(strings, start + np.arange(length + 1), axis=1)
        rows = np.concatenate((strings, again), axis=1)
        targets = rows[:, 1:].copy()
        targets[:, : 2 * length] = IGNORED
        return Batch(rows[:, :-1], targets)

    def token_label(self, token: int) -> str:
        return str(token)

    def answer_cells(self, tokens: Int64[np.ndarray, " t"]) -> Bool[np.ndarray, "t t"]:
        """What followed the current token where it stood first."""
        cells = np.zeros((len(tokens), len(tokens)), dtype=bool)
        first = (tokens[:, None] == tokens[None, :]).argmax(axis=1)
        queries = np.flatnonzero(first < np.arange(len(tokens)))
        cells[queries, first[queries] + 1] = True
        return cells

    def deduce(self, tokens: Int64[np.ndarray, " t"]) -> Int64[np.ndarray, " t"]:
        targets = np.full(len(tokens), IGNORED)
        followed_by: dict[int, int] = {}
        previous = None
        for place, token in enumerate(tokens.tolist()):
            if previous is not None:
                followed_by.setdefault(previous, token)
            if token in followed_by:
                targets[place] = followed_by[token]
            previous = token
        return targets

    def answer_length(self, prompt: Int64[np.ndarray, " t"]) -> int:
        """Half as many as the symbols before the one that the prompt ends with, as in training; at least one."""
        return max(1, (len(prompt) - 1) // 2)
