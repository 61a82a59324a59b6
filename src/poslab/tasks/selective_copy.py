"""Copy the symbols that stand between noise after a separator."""

import numpy as np
from jaxtyping import Int64

from poslab.tasks.strings import StringTransduction


class SelectiveCopyTask(StringTransduction):
    """``x1 .. xn`` scattered among NOISE tokens, SEP, and then ``x1 .. xn`` alone, in order.

    What to copy is known by what it is, not by where it stands: every symbol counts as marked, the NOISE token does
    not. For n = 3 and two noise tokens the model sees the first row and has to name the second (``.`` counts in no
    loss)::

        tokens    7  NOISE  2  NOISE  5  SEP  7  2
        targets   .    .    .    .    .   7   2  5

    Every choice of places for the noise is equally likely. Sources: Gu and Dao 2023 (arXiv 2312.00752), the selective
    copying task; Jing et al. 2019 (1706.02761), the denoising task.

    Args:
        n_symbols: symbols a string is drawn from; SEP and NOISE are two tokens more.
        length: n, symbols to copy; the longest of training. The model sees ``T = 2 n + n_noise`` tokens, one more with
            ``bos``, one more with ``eos``.
        min_length: the shortest of training, each batch draws one length; None: always ``length``.
        n_noise: NOISE tokens in every source, whatever its length; with 0 the task is `CopyTask`.
        bos: begin every row with a BOS token.
        eos: end every answer with an EOS token, which has to be named too.
        distinct: no symbol stands twice in a string.

    Raises:
        ValueError: a size that leaves the task empty, fewer noise tokens than none, or more distinct symbols than
            there are.
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
