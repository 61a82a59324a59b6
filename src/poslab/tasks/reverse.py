"""Write a random string backwards after a separator."""

import numpy as np
from jaxtyping import Int64

from poslab.tasks.strings import StringTransduction


class ReverseTask(StringTransduction):
    """``x1 .. xn SEP xn .. x1``: after the separator, write the string backwards.

    The place to look at moves away by two tokens with every step, where a copy's keeps its distance. For n = 3 the
    model sees the first row and has to name the second (``.`` counts in no loss)::

        tokens    7  2  5  SEP  5  2
        targets   .  .  .   5   2  7

    With ``bos`` and ``eos`` the row is ``BOS x1 .. xn SEP xn .. x1 EOS``. The model sees ``T = 2 n`` tokens, one more
    with ``bos``, one more with ``eos``. The options are those of `StringTransduction`.
    """

    def places(self, sources: Int64[np.ndarray, "b s"]) -> Int64[np.ndarray, "b n"]:
        return np.tile(np.arange(sources.shape[1])[::-1], (len(sources), 1))

    def deduce_symbol(self, source: list[int], written: int) -> int | None:
        return source[-1 - written] if written < len(source) else None
