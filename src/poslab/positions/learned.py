"""A trainable table with one row per position."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from poslab.positions.base import PositionScheme


class LearnedPositionalEmbedding(PositionScheme):
    """One trained vector per position, added to the token vectors: ``L * D`` parameters in ``.embedding.weight``.

    Args:
        max_context_length: L, the number of positions (rows).
        d_model: D, the width of a row.
        init_std: standard deviation of the normal start.

    Raises:
        ValueError: a size below 1 or a negative ``init_std``.
    """

    def __init__(self, max_context_length: int, d_model: int, init_std: float = 0.02) -> None:
        super().__init__()
        if max_context_length < 1 or d_model < 1:
            raise ValueError(f"max_context_length {max_context_length} and d_model {d_model} must be at least 1")
        if init_std < 0:
            raise ValueError(f"init_std {init_std} must not be negative")
        self.max_context_length = max_context_length
        self.d_model = d_model
        self.embedding = nn.Embedding(max_context_length, d_model)
        nn.init.normal_(self.embedding.weight, std=init_std)

    def embed(self, seq_len: int, start: int = 0) -> Float[Tensor, "t d"]:
        """Rows ``start .. start + seq_len - 1``, (T, D).

        Raises:
            ValueError: a position outside ``[0, L)``; names the length and L.
        """
        self.check_range(seq_len, start)
        # A slice, not a look-up: the gradient is the same and no index tensor is made.
        return self.embedding.weight[start : start + seq_len]

    def forward(self, seq_len: int) -> Float[Tensor, "t d"]:
        """The vectors of positions ``0 .. seq_len - 1``, (T, D).

        Raises:
            ValueError: ``seq_len`` outside ``[1, L]``; names both numbers.
        """
        return self.embed(seq_len)

    def extra_repr(self) -> str:
        return f"max_context_length={self.max_context_length}, d_model={self.d_model}"

    @torch.no_grad()
    def table(self) -> Float[Tensor, "l d"]:
        """The whole table, (L, D), without gradient."""
        return self.embedding.weight.detach()
