"""Repeat one token as often as it occurred before a separator, then stop."""

import numpy as np
from jaxtyping import Bool, Int64

from poslab.tasks.transduction import Transduction


class CountTask(Transduction):
    """``x .. x SEP x .. x EOS``: the model has to write a symbol that occurred n times n times again, then EOS.

    For n = 3 the model reads ``tokens`` and has to predict ``targets`` (``.``: ignored)::

        tokens    7  7  7  SEP  7  7   7
        targets   .  .  .   7   7  7  EOS

    The symbol can be read from any earlier token, so only the position of EOS needs counting; lengths should therefore
    vary in training. In `answer_cells` every earlier occurrence of the symbol holds the answer.

    Source: Kazemnejad et al. 2023 (2305.19466), the copy task with one token repeated.

    Args:
        n_symbols: number of different symbols; the separator is one more token.
        length: n, the number of repetitions, the largest in training. The model reads ``T = 2 n + 1`` tokens, one more
            with ``bos`` and one less without ``eos``.
        min_length: the smallest n in training, where each batch draws one; None: always ``length``.
        bos: start every row with a BOS token.
        eos: end every answer with an EOS token, which is a target too; without it the task needs no counting.

    Raises:
        ValueError: a size that is too small; names it.
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
