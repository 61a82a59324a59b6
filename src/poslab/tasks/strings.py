"""Base class of the transductions whose source is a random string."""

import numpy as np
from jaxtyping import Bool, Int64

from poslab.tasks.transduction import Transduction


class StringTransduction(Transduction):
    """A transduction of a string ``x1 .. xn`` whose symbols are drawn uniformly.

    Args:
        n_symbols: number of different symbols; the separator is one more token.
        length: n, the number of symbols in a string, the largest in training.
        min_length: the smallest n in training, where each batch draws one; None: always ``length``.
        bos: start every row with a BOS token.
        eos: end every answer with an EOS token, which is a target too.
        distinct: no symbol occurs twice in a string.

    Raises:
        ValueError: a size that is too small, or more distinct symbols than ``n_symbols``; names the numbers.
    """

    def __init__(
        self,
        n_symbols: int = 64,
        length: int = 6,
        min_length: int | None = None,
        bos: bool = False,
        eos: bool = False,
        distinct: bool = False,
    ) -> None:
        self.distinct = distinct
        super().__init__(n_symbols, length, min_length, bos, eos)

    def check_length(self, length: int) -> None:
        super().check_length(length)
        if self.distinct and length > self.n_symbols:
            raise ValueError(
                f"length {length} needs {length} distinct symbols, but there are only {self.n_symbols}; "
                "use more task.n_symbols or task.distinct=false"
            )

    def sources(self, rng: np.random.Generator, batch_size: int, length: int) -> Int64[np.ndarray, "b s"]:
        return draw_strings(rng, self.n_symbols, batch_size, length, self.distinct)


def draw_strings(
    rng: np.random.Generator, n_symbols: int, batch_size: int, length: int, distinct: bool
) -> Int64[np.ndarray, "b n"]:
    """Draw random strings (B, n) over ``n_symbols`` symbols; with ``distinct`` no symbol occurs twice in a string."""
    if not distinct:
        return rng.integers(n_symbols, size=(batch_size, length))
    shuffled = rng.permuted(np.tile(np.arange(n_symbols), (batch_size, 1)), axis=1)
    return shuffled[:, :length]


def cells_after_first(tokens: Int64[np.ndarray, " t"]) -> Bool[np.ndarray, "t t"]:
    """Cells (T, T): for each query token that occurred before, the key after its first occurrence."""
    cells = np.zeros((len(tokens), len(tokens)), dtype=bool)
    first = (tokens[:, None] == tokens[None, :]).argmax(axis=1)
    queries = np.flatnonzero(first < np.arange(len(tokens)))
    cells[queries, first[queries] + 1] = True
    return cells
