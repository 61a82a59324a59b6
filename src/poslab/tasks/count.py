"""Write one token as often as it stood before a separator, and then stop."""

import numpy as np
from jaxtyping import Bool, Int64

from poslab.tasks.transduction import Transduction


class CountTask(Transduction):
    """``x .. x SEP x .. x EOS``: n times the same symbol, to be written n times again. Only its number matters.

    For n = 3 the model sees the first row and has to name the second (``.`` counts in no loss)::

        tokens    7  7  7  SEP  7  7   7
        targets   .  .  .   7   7  7  EOS

    The symbol is a mere look-up; when to name EOS has to be counted, so lengths should vary in training. Every earlier
    token that is the symbol holds the answer. Source: Kazemnejad et al. 2023 (arXiv 2305.19466), the copy task with one
    token repeated.

    Args:
        n_symbols: symbols a row's one symbol is drawn from; the separator is one token more.
        length: n, how often it stands; the longest of training. The model sees ``T = 2 n + 1`` tokens, one more with
            ``bos``, one less without ``eos``.
        min_length: the shortest of training, each batch draws one length; None: always ``length``.
        bos: begin every row with a BOS token.
        eos: end every answer with an EOS token, which has to be named too; without it nothing has to be counted.

    Raises:
        ValueError: a size that leaves the task empty.
    """

    def __init__(
        self,
        n_symbols: int = 64,
        length: int = 10,
        min_length: int | None = None,
        bos: bool = False,
        eos: bool = True,
    ) -> None:
        super().__init__(n_symbols, length, min_length, bos, eos)

    def sources(self, rng: np.random.Generator, batch_size: int, length: int) -> Int64[np.ndarray, "b s"]:
        return np.repeat(rng.integers(self.n_symbols, size=(batch_size, 1)), length, axis=1)

    def places(self, sources: Int64[np.ndarray, "b s"]) -> Int64[np.ndarray, "b n"]:
        return np.tile(np.arange(sources.shape[1]), (len(sources), 1))

    def answer_cells(self, tokens: Int64[np.ndarray, " t"]) -> Bool[np.ndarray, "t t"]:
        queries = super().answer_cells(tokens).any(axis=1, keepdims=True)
        symbol = tokens[self.separator_index(tokens) - 1]
        return np.tri(len(tokens), dtype=bool) & queries & (tokens == symbol)

    def deduce_symbol(self, source: list[int], written: int) -> int | None:
        return source[0] if written < len(source) else None
