"""Write a random string backwards after a separator."""

import numpy as np
from jaxtyping import Int64

from poslab.tasks.strings import StringTransduction


class ReverseTask(StringTransduction):
    """``x1 .. xn SEP xn .. x1``: the model has to write the string backwards after the separator.

    The distance to the token that holds the answer grows by two with every step; in `CopyTask` it is constant. For
    n = 3 the model reads ``tokens`` and has to predict ``targets`` (``.``: ignored)::

        tokens    7  2  5  SEP  5  2
        targets   .  .  .   5   2  7

    With ``bos`` and ``eos`` the row is ``BOS x1 .. xn SEP xn .. x1 EOS``. The model reads ``T = 2 n`` tokens, one more
    with ``bos`` and one more with ``eos``. The options are those of `StringTransduction`.
    """

    def places(self, sources: Int64[np.ndarray, "b s"]) -> Int64[np.ndarray, "b n"]:
        return np.tile(np.arange(sources.shape[1])[::-1], (len(sources), 1))

    def deduce_symbol(self, source: list[int], written: int) -> int | None:
        return source[-1 - written] if written < len(source) else None
