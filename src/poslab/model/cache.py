"""What an attention layer keeps of the tokens it has read, so that the next one does not read them again."""

from jaxtyping import Float
from torch import Tensor


class LayerCache:
    """Keys, as the position scheme has rotated them, and values of one attention layer, in the order of the tokens.

    Room for the whole context is made at the first token, so that each one after it writes its own row and copies none.
    Batch size, device and dtype are those of the first tokens. It carries no gradient.

    Args:
        max_context_length: L, tokens that it has room for.
    """

    def __init__(self, max_context_length: int) -> None:
        self.max_context_length = max_context_length
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(
        self, keys: Float[Tensor, "b h t d_head"], values: Float[Tensor, "b h t d_head"]
    ) -> tuple[Float[Tensor, "b h t_k d_head"], Float[Tensor, "b h t_k d_head"]]:
        """Keep the keys and values of T more tokens; returns those of all tokens so far.

        Raises:
            ValueError: more tokens than there is room for, or another batch size; names the numbers.
        """
        batch, n_heads, n_new, d_head = keys.shape
        end = self.length + n_new
        if end > self.max_context_length:
            raise ValueError(f"{end} tokens do not fit a cache for max_context_length {self.max_context_length}")
        if self._keys is None or self._values is None:
            room = (batch, n_heads, self.max_context_length, d_head)
            self._keys, self._values = keys.new_empty(room), values.new_empty(room)
        if len(self._keys) != batch:
            raise ValueError(f"the cache was begun with a batch of {len(self._keys)}, and now there are {batch} rows")
        # The next token writes into the same memory, which a backward pass could not follow.
        self._keys[:, :, self.length : end] = keys.detach()
        self._values[:, :, self.length : end] = values.detach()
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]
