"""Key/value cache of an attention layer, so that generating a token does not recompute the tokens before it."""

from jaxtyping import Float
from torch import Tensor


class LayerCache:
    """Keys and values of one attention layer, in token order. The keys are stored after the position scheme's rotation.

    The first `append` allocates memory for the whole context, so that later tokens are written in place and nothing is
    reallocated. It also fixes batch size, device and dtype. The cache carries no gradient.

    Args:
        max_context_length: L, the most tokens that the cache can store.
    """

    def __init__(self, max_context_length: int) -> None:
        self.max_context_length = max_context_length
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(
        self, keys: Float[Tensor, "b h t d_head"], values: Float[Tensor, "b h t d_head"]
    ) -> tuple[Float[Tensor, "b h t_k d_head"], Float[Tensor, "b h t_k d_head"]]:
        """Append the keys and values (B, H, T, d_head) of T new tokens; return those of all tokens so far.

        Raises:
            ValueError: more than L tokens in total, or another batch size than before; names the numbers.
        """
        batch, n_heads, n_new, d_head = keys.shape
        end = self.length + n_new
        if end > self.max_context_length:
            raise ValueError(f"{end} tokens do not fit a cache for max_context_length {self.max_context_length}")
        if self._keys is None or self._values is None:
            shape = (batch, n_heads, self.max_context_length, d_head)
            self._keys, self._values = keys.new_empty(shape), values.new_empty(shape)
        if len(self._keys) != batch:
            raise ValueError(f"the cache was created for a batch of {len(self._keys)} rows, but got {batch} rows")
        # Detached: later tokens are written into the same memory, which autograd cannot differentiate through.
        self._keys[:, :, self.length : end] = keys.detach()
        self._values[:, :, self.length : end] = values.detach()
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]
