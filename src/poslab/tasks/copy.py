"""Copy a random string after a separator."""

import numpy as np
from jaxtyping import Int64

from poslab.tasks.strings import StringTransduction


class CopyTask(StringTransduction):
    """``x1 .. xn SEP x1 .. xn``: the model has to write the string again after the separator, which needs positions.

    For n = 3 the model reads ``tokens`` and has to predict ``targets`` (``.``: ignored)::

        tokens    7  2  5  SEP  7  2
        targets   .  .  .   7   2  5

    With ``bos`` and ``eos`` the row is ``BOS x1 .. xn SEP x1 .. xn EOS``. The model reads ``T = 2 n`` tokens, one more
    with ``bos`` and one more with ``eos``. The options are those of `StringTransduction`.
    """

    def places(self, sources: Int64[np.ndarray, "b s"]) -> Int64[np.ndarray, "b n"]:
        return np.tile(np.arange(sources.shape[1]), (len(sources), 1))

    def answers(self, sources: Int64[np.ndarray, "b s"]) -> Int64[np.ndarray, "b n"]:
        # Faster than the look-up by `places`, with the same result.
        return sources

    def deduce_symbol(self, source: list[int], written: int) -> int | None:
        return source[written] if written < len(source) else None
