"""Copy, after a separator, the symbols of a source that also contains noise tokens."""

import numpy as np
from jaxtyping import Int64

from poslab.tasks.strings import StringTransduction


class SelectiveCopyTask(StringTransduction):
    """``x1 .. xn`` at random places among NOISE tokens, SEP, and then ``x1 .. xn`` in order, without the noise.

    The model has to recognise what to copy by content, not by position: every token except NOISE is copied. For n = 3
    and two noise tokens, the model reads ``tokens`` and has to predict ``targets`` (``.``: ignored)::

        tokens    7  NOISE  2  NOISE  5  SEP  7  2
        targets   .    .    .    .    .   7   2  5

    All placements of the noise are equally likely.

    Sources: Gu and Dao 2023 (2312.00752), the selective copying task; Jing et al. 2019 (1706.02761), the denoising
    task.

    Args:
        n_symbols: number of different symbols; SEP and NOISE are two more tokens.
        length: n, the number of symbols to copy, the largest in training. The model reads ``T = 2 n + n_noise``
            tokens, one more with ``bos`` and one more with ``eos``.
        min_length: the smallest n in training, where each batch draws one; None: always ``length``.
        n_noise: number of NOISE tokens in a source, the same at all lengths; with 0 the task is `CopyTask`.
        bos: start every row with a BOS token.
        eos: end every answer with an EOS token, which is a target too.
        distinct: no symbol occurs twice in a string.

    Raises:
        ValueError: a size that is too small, a negative ``n_noise``, or more distinct symbols than ``n_symbols``;
            names the numbers.
    """

    def __init__(
        self,
        n_symbols: int = 64,
        length: int = 6,
        min_length: int | None = None,
        n_noise: int = 6,
        bos: bool = False,
        eos: bool = False,
        distinct: bool = False,
    ) -> None:
        if n_noise < 0:
            raise ValueError(f"task.n_noise {n_noise} is below 0; use 0 for no noise")
        self.n_noise = n_noise
        super().__init__(n_symbols, length, min_length, bos, eos, distinct)
        self.noise = self.vocab_size
        self.vocab_size += 1

    def source_length(self, length: int) -> int:
        return length + self.n_noise

    def sources(self, rng: np.random.Generator, batch_size: int, length: int) -> Int64[np.ndarray, "b s"]:
        strings = super().sources(rng, batch_size, length)
        marked = np.tile(np.arange(length + self.n_noise) < length, (batch_size, 1))
        marked = rng.permuted(marked, axis=1)
        sources = np.full(marked.shape, self.noise)
        sources[marked] = strings.ravel()
        return sources

    def places(self, sources: Int64[np.ndarray, "b s"]) -> Int64[np.ndarray, "b n"]:
        return np.nonzero(sources != self.noise)[1].reshape(len(sources), -1)

    def deduce_symbol(self, source: list[int], written: int) -> int | None:
        marked = [token for token in source if token != self.noise]
        return marked[written] if written < len(marked) else None

    def token_label(self, token: int) -> str:
        return "NOISE" if token == self.noise else super().token_label(token)
