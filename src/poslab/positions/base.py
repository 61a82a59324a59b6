"""The interface of every position scheme: three places to act, all no-ops until overridden."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn


def distances(n_queries: int, n_keys: int, device: torch.device) -> Int64[Tensor, "t_q t_k"]:
    """How far behind its query each key stands, (T_q, T_k), for the last ``n_queries`` of ``n_keys`` positions.

    Negative for keys after the query, which the causal mask covers.
    """
    positions = torch.arange(n_keys, device=device)
    return positions[n_keys - n_queries :, None] - positions[None, :]


class PositionScheme(nn.Module):
    """How a model learns where a token stands.

    A scheme acts in one or more of three places; whatever it does not override stays a no-op:

    - `embed`: vectors added to the token vectors (learned and sinusoidal tables);
    - `rotate`: a map of queries and keys (rotary schemes);
    - `bias`: numbers added to the attention scores (ALiBi, T5).

    Constructor arguments named ``max_context_length``, ``d_model``, ``n_heads`` and ``d_head`` are filled in by the
    model that owns the scheme; all others are options of its yaml file.
    """

    max_context_length: int | None = None
    """The longest sequence the scheme can place; None when it has no end."""

    d_model: int | None = None
    """The width of the vectors from `embed`; None when the scheme adds none."""

    drawn: Int64[Tensor, " t"] | None = None
    """Positions that somebody else drew by `draw`, to be used in training; None: the scheme draws its own."""

    def draw(self, seq_len: int) -> Int64[Tensor, " t"] | None:
        """The positions (T,) that training gives one batch by torch's random state; None: nothing is left to chance.

        A scheme that draws at random in training draws here and nowhere else, and uses `drawn` where it is given.
        """
        return None

    def embed(self, seq_len: int, start: int = 0) -> Float[Tensor, "t d"] | None:
        """Vectors (T, D) to add to the token vectors at positions ``start .. start + seq_len - 1``; None adds nothing.

        Raises:
            ValueError: a position lies outside the table.
        """
        return None

    def rotate(self, x: Float[Tensor, "b h t d_head"], start: int = 0) -> Float[Tensor, "b h t d_head"]:
        """Queries or keys (B, H, T, d_head) that stand at positions ``start .. start + T - 1``, mapped by position."""
        return x

    def bias(self, n_queries: int, n_keys: int) -> Float[Tensor, "h t_q t_k"] | None:
        """Bias (H, T_q, T_k) for the scores of the last ``n_queries`` of ``n_keys`` positions; None adds nothing.

        Entries for keys after the query are never used: the causal mask covers them.
        """
        return None

    def table(self) -> Float[Tensor, "l d"] | None:
        """Every vector that `embed` can add, (L, D), for diagnostics; None for a scheme without a table."""
        return None if self.max_context_length is None else self.embed(self.max_context_length)

    def extend(self, max_context_length: int) -> None:
        """Make the scheme place sequences of ``max_context_length`` tokens; nothing to do for one without an end.

        Raises:
            ValueError: the scheme ends before that; names both numbers.
        """
        if self.max_context_length is not None and max_context_length > self.max_context_length:
            raise ValueError(
                f"{type(self).__name__} has {self.max_context_length} positions and cannot place {max_context_length} "
                f"tokens; it has to be trained with max_context_length {max_context_length} or more"
            )

    def forward(self, seq_len: int) -> Float[Tensor, "t d"] | None:
        """The vectors of positions ``0 .. seq_len - 1``: the same as `embed`."""
        return self.embed(seq_len)

    def check_range(self, seq_len: int, start: int = 0) -> None:
        """Refuse positions that a table of ``max_context_length`` rows does not have.

        On the host and before the look-up: on an accelerator a wrong index kills the process instead of raising.

        Raises:
            ValueError: ``seq_len < 1``, ``start < 0`` or ``start + seq_len > max_context_length``.
        """
        end = start + seq_len
        if seq_len < 1 or start < 0 or (self.max_context_length is not None and end > self.max_context_length):
            where = f"seq_len {seq_len}" if start == 0 else f"positions {start} to {end - 1}"
            raise ValueError(
                f"{where} does not fit max_context_length {self.max_context_length}; "
                f"use 1 to {self.max_context_length} positions or build a longer table"
            )
