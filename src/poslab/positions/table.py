"""Base class of schemes with one row per position: chooses the rows of a sequence, in training and evaluation."""

from abc import abstractmethod

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from poslab.positions.base import PositionScheme

CHOICES = ("none", "random")


class PositionTable(PositionScheme):
    """A table (L, D) whose rows are added to the token vectors.

    In evaluation a sequence gets rows ``0 .. T - 1``. In training it can get random ones, so that training uses all L
    rows although the sequences are shorter; all sequences of a batch get the same rows.

    Source: Ruoss et al. 2023 (2305.16843) for random positions; a random offset is the variant without gaps.

    Args:
        max_context_length: L, the number of positions (rows).
        d_model: D, the width of a row.
        train_offset: ``none``, or ``random``: T consecutive rows from a random one on.
        train_positions: ``none``, or ``random``: T random rows in increasing order.

    Raises:
        ValueError: a size below 1, an unknown choice, or both choices at once.
    """

    max_context_length: int
    d_model: int

    def __init__(
        self, max_context_length: int, d_model: int, train_offset: str = "none", train_positions: str = "none"
    ) -> None:
        super().__init__()
        if max_context_length < 1 or d_model < 1:
            raise ValueError(f"max_context_length {max_context_length} and d_model {d_model} must be at least 1")
        for name, value in (("train_offset", train_offset), ("train_positions", train_positions)):
            if value not in CHOICES:
                raise ValueError(f"{name}={value} is unknown; choose one of {', '.join(CHOICES)}")
        if train_offset == train_positions == "random":
            raise ValueError("train_offset=random and train_positions=random exclude each other; use one")
        self.max_context_length = max_context_length
        self.d_model = d_model
        self.train_offset = train_offset
        self.train_positions = train_positions

    @abstractmethod
    def rows(self) -> Float[Tensor, "l d"]:
        """The whole table (L, D), with gradient if it has parameters."""

    def embed(self, seq_len: int, start: int = 0) -> Float[Tensor, "t d"]:
        """Rows ``start .. start + seq_len - 1``, (T, D); in training random ones with the options of the class.

        Raises:
            ValueError: a position is outside ``[0, L)``; names the length and L.
        """
        self.check_range(seq_len, start)
        rows = self.rows()
        if self.training and self.drawn is not None:
            return rows[self.drawn]
        if self.training and self.train_offset == "random":
            start = self._random_start(seq_len)
        if self.training and self.train_positions == "random":
            return rows[self._random_subset(seq_len).to(rows.device)]
        # A slice has the same gradient as a look-up and needs no index tensor.
        return rows[start : start + seq_len]

    def draw(self, seq_len: int) -> Int64[Tensor, " t"] | None:
        if self.train_offset == "random":
            return self._random_start(seq_len) + torch.arange(seq_len)
        if self.train_positions == "random":
            return self._random_subset(seq_len)
        return None

    def table(self) -> Float[Tensor, "l d"]:
        """The whole table, (L, D), without gradient."""
        return self.rows().detach()

    def trained_table(self, seq_len: int) -> Float[Tensor, "n d"]:
        """The rows that training sequences of up to ``seq_len`` tokens use: all rows with random positions."""
        table = self.table()
        return table[:seq_len] if self.train_offset == self.train_positions == "none" else table

    def _random_start(self, seq_len: int) -> int:
        return int(torch.randint(self.max_context_length - seq_len + 1, ()))

    def _random_subset(self, seq_len: int) -> Int64[Tensor, " t"]:
        return torch.randperm(self.max_context_length)[:seq_len].sort().values

    def extra_repr(self) -> str:
        return f"max_context_length={self.max_context_length}, d_model={self.d_model}"
