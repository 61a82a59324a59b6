"""Key/value cache of an attention layer, so that generating a token does not recompute the tokens before it."""

from jaxtyping import Float
from torch import Tensor


class LayerCache:
    """Keys and values of one attention layer, in token order, and the position scheme's features of each token.

    The keys are stored after the position scheme's rotation.

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
        self._features: Tensor | None = None

    def append(
        self,
        keys: Float[Tensor, "b h t d_rotated"],
        values: Float[Tensor, "b h t d_head"],
        features: Float[Tensor, "b h t f"] | None = None,
    ) -> tuple[Float[Tensor, "b h t_k d_rotated"], Float[Tensor, "b h t_k d_head"], Float[Tensor, "b h t_k f"] | None]:
        """Append the keys, values and features (B, H, T, ..) of T new tokens; return those of all tokens so far.

        Raises:
            ValueError: more than L tokens in total, or another batch size than before; names the numbers.
        """
        batch, n_new = keys.shape[0], keys.shape[2]
        end = self.length + n_new
        if end > self.max_context_length:
            raise ValueError(f"{end} tokens do not fit a cache for max_context_length {self.max_context_length}")
        if self._keys is None or self._values is None:
            self._keys, self._values = self._room(keys), self._room(values)
            self._features = None if features is None else self._room(features)
        if len(self._keys) != batch:
            raise ValueError(f"the cache was created for a batch of {len(self._keys)} rows, but got {batch} rows")
        # Detached: later tokens are written into the same memory, which autograd cannot differentiate through.
        self._keys[:, :, self.length : end] = keys.detach()
        self._values[:, :, self.length : end] = values.detach()
        if self._features is not None and features is not None:
            self._features[:, :, self.length : end] = features.detach()
        self.length = end
        return (
            self._keys[:, :, :end],
            self._values[:, :, :end],
            None if self._features is None else self._features[:, :, :end],
        )

    def _room(self, x: Tensor) -> Tensor:
        """Memory for what ``x`` (B, H, T, F) is, of the whole context."""
        return x.new_empty((*x.shape[:2], self.max_context_length, x.shape[-1]))
