"""Write the symbols of a random string in ascending order after a separator."""

import numpy as np
from jaxtyping import Int64

from poslab.tasks.strings import StringTransduction


class SortTask(StringTransduction):
    """``x1 .. xn SEP`` and then the same symbols by ascending id. Where a symbol stood does not matter.

    For n = 4 the model sees the first row and has to name the second (``.`` counts in no loss)::

        tokens    7  2  9  2  SEP  2  2  7
        targets   .  .  .  .   2   2  7  9

    The order is stable: of equal symbols, the one written first is the one that stood first, and its place holds the
    answer. With ``bos`` and ``eos`` the row begins with BOS and ends with EOS. The model sees ``T = 2 n`` tokens, one
    more with ``bos``, one more with ``eos``. The options are those of `StringTransduction`.
    """

    def places(self, sources: Int64[np.ndarray, "b s"]) -> Int64[np.ndarray, "b n"]:
        return np.argsort(sources, axis=1, kind="stable")

    def deduce_symbol(self, source: list[int], written: int) -> int | None:
        remaining = list(source)
        for _ in range(min(written, len(source))):
            remaining.remove(min(remaining))
        return min(remaining, default=None)
