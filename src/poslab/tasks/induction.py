"""Continue a string from a random place in it: predict the token that followed the current one before."""

import numpy as np
from jaxtyping import Bool, Int64

from poslab.tasks.base import IGNORED, Batch, Task, check_at_least
from poslab.tasks.strings import cells_after_first, draw_strings


class InductionTask(Task):
    """``x1 .. x2n``, all distinct, then ``xr`` for a random r from 1 to n, after which the n next tokens are targets.

    For n = 2 and r = 2, the model reads ``tokens`` and has to predict ``targets`` (``.``: ignored)::

        tokens    7  2  5  9  2  5
        targets   .  .  .  .  5  9

    Each target is the token that followed the current token at its first occurrence. The distance to that occurrence is
    the same within a row and uniform over n values from row to row, so the model has to find it by content.

    Source: Olsson et al. 2022 (2209.11895), induction heads.

    Args:
        n_symbols: V, the number of different symbols; at least ``2 * length``.
        length: n, the number of targets per row, the largest in training. The model reads ``T = 3 n`` tokens.
        min_length: the smallest n in training, where each batch draws one; None: always ``length``.

    Raises:
        ValueError: a size that is too small, or too few symbols for ``length``; names the numbers.
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
                f"length {length} needs {2 * length} distinct symbols, but there are only {self.n_symbols}; "
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

    def answer_cells(self, tokens: Int64[np.ndarray, " t"]) -> Bool[np.ndarray, "t t"]:
        return cells_after_first(tokens)

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
        """Half the number of tokens before the last token of the prompt, as in training; at least 1."""
        return max(1, (len(prompt) - 1) // 2)
