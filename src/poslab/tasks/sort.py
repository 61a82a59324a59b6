"""Write the symbols of a random string in ascending order after a separator."""

import numpy as np
from jaxtyping import Int64

from poslab.tasks.strings import StringTransduction


class SortTask(StringTransduction):
    """``x1 .. xn SEP``, then the same symbols sorted by id. The answer does not depend on the order of the source.

    For n = 4 the model reads ``tokens`` and has to predict ``targets`` (``.``: ignored)::

        tokens    7  2  9  2  SEP  2  2  7
        targets   .  .  .  .   2   2  7  9

    The sort is stable: `answer_cells` takes equal symbols in the order in which they occur in the source. With ``bos``
    and ``eos`` the row starts with BOS and ends with EOS. The model reads ``T = 2 n`` tokens, one more with ``bos`` and
    one more with ``eos``. The options are those of `StringTransduction`.
    """

    def places(self, sources: Int64[np.ndarray, "b s"]) -> Int64[np.ndarray, "b n"]:
        return np.argsort(sources, axis=1, kind="stable")

    def deduce_symbol(self, source: list[int], written: int) -> int | None:
        remaining = list(source)
        for _ in range(min(written, len(source))):
            remaining.remove(min(remaining))
        return min(remaining, default=None)
