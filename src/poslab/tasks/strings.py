"""What transductions whose source is a random string share: the draw, with or without repeated symbols."""

import numpy as np
from jaxtyping import Int64

from poslab.tasks.transduction import Transduction


class StringTransduction(Transduction):
    """A transduction of ``x1 .. xn``, each symbol drawn uniformly.

    Args:
        n_symbols: symbols a string is drawn from; the separator is one token more.
        length: n, symbols per string; the longest of training.
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


def draw_strings(
    rng: np.random.Generator, n_symbols: int, batch_size: int, length: int, distinct: bool
) -> Int64[np.ndarray, "b n"]:
    """Random strings (B, n) over ``n_symbols`` symbols; with ``distinct`` no symbol stands twice in one."""
    if not distinct:
        return rng.integers(n_symbols, size=(batch_size, length))
    shuffled = rng.permuted(np.tile(np.arange(n_symbols), (batch_size, 1)), axis=1)
    return shuffled[:, :length]
