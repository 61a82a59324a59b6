"""A trainable table with one row per position."""

from jaxtyping import Float
from torch import Tensor, nn

from poslab.positions.table import PositionTable


class LearnedPositionalEmbedding(PositionTable):
    """One trained vector per position, added to the token vectors: ``L * D`` parameters in ``.embedding.weight``.

    Args:
        max_context_length: L, the number of positions (rows).
        d_model: D, the width of a row.
        init_std: standard deviation of the normal initialisation.
        train_offset: ``none``, or ``random``: each training batch starts at a random row.
        train_positions: ``none``, or ``random``: each training batch gets random rows in increasing order.

    Raises:
        ValueError: a size below 1, a negative ``init_std``, an unknown choice, or both choices ``random``.
    """

    def __init__(
        self,
        max_context_length: int,
        d_model: int,
        init_std: float = 0.02,
        train_offset: str = "none",
        train_positions: str = "none",
    ) -> None:
        super().__init__(max_context_length, d_model, train_offset, train_positions)
        if init_std < 0:
            raise ValueError(f"init_std {init_std} must not be negative")
        self.embedding = nn.Embedding(max_context_length, d_model)
        nn.init.normal_(self.embedding.weight, std=init_std)

    def rows(self) -> Float[Tensor, "l d"]:
        """The whole table, (L, D), with gradient."""
        return self.embedding.weight
