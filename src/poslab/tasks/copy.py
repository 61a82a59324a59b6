"""Copy a random string after a separator."""

import numpy as np
from jaxtyping import Bool, Int64

from poslab.tasks.base import IGNORED
from poslab.tasks.transduction import Transduction


class CopyTask(Transduction):
    """``x1 .. xn SEP x1 .. xn``: after the separator, write the string again. Positions decide here.

    For n = 3 the model sees the first row and has to name the second (``.`` counts in no loss)::

        tokens    7  2  5  SEP  7  2
        targets   .  .  .   7   2  5

    With ``bos`` and ``eos`` the row is ``BOS x1 .. xn SEP x1 .. xn EOS``.

    Args:
        n_symbols: symbols a string is drawn from; the separator is one token more.
        length: n, symbols per string; the longest of training. The model sees ``T = 2 n`` tokens, one more with
            ``bos``, one more with ``eos``.
        min_length: the shortest of training, each batch draws one length; None: always ``length``.
        bos: begin every row with a BOS token.
        eos: end every answer with an EOS token, which has to be named too.
        distinct: no symbol stands twice in a string.

    Raises:
        ValueError: a size that leaves the task empty, or more distinct symbols than there are.
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
                f"length {length} with distinct symbols, but there are only {self.n_symbols}; "
                "use more task.n_symbols or task.distinct=false"
            )

    def sources(self, rng: np.random.Generator, batch_size: int, length: int) -> Int64[np.ndarray, "b s"]:
        return draw_strings(rng, self.n_symbols, batch_size, length, self.distinct)

    def answers(self, sources: Int64[np.ndarray, "b s"]) -> Int64[np.ndarray, "b n"]:
        return sources

    def answer_cells(self, tokens: Int64[np.ndarray, " t"]) -> Bool[np.ndarray, "t t"]:
        cells = np.zeros((len(tokens), len(tokens)), dtype=bool)
        separator = self.separator_index(tokens)
        source = np.arange(self.source_start, min(separator, len(tokens) - separator + self.source_start))
        cells[separator - self.source_start + source, source] = True
        return cells

    def deduce(self, tokens: Int64[np.ndarray, " t"]) -> Int64[np.ndarray, " t"]:
        targets = np.full(len(tokens), IGNORED)
        separator = self.separator_index(tokens)
        source = [int(token) for token in tokens[:separator] if token != self.bos]
        for query in range(separator, len(tokens)):
            copied = query - separator
            if copied < len(source):
                targets[query] = source[copied]
            elif self.eos is not None:
                targets[query] = self.eos
        return targets


def draw_strings(
    rng: np.random.Generator, n_symbols: int, batch_size: int, length: int, distinct: bool
) -> Int64[np.ndarray, "b n"]:
    """Random strings (B, n) over ``n_symbols`` symbols; with ``distinct`` no symbol stands twice in one."""
    if not distinct:
        return rng.integers(n_symbols, size=(batch_size, length))
    shuffled = rng.permuted(np.tile(np.arange(n_symbols), (batch_size, 1)), axis=1)
    return shuffled[:, :length]
