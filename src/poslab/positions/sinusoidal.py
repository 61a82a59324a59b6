"""The fixed sine and cosine table of the original transformer."""

import torch
from jaxtyping import Float
from torch import Tensor

from poslab.positions.base import PositionScheme


def sinusoidal_table(n_positions: int, d_model: int, base: float = 10000.0) -> Float[Tensor, "l d"]:
    """The table (L, D) in fp32: ``pe[p, 2k] = sin(p / base^(2k/D))`` and ``pe[p, 2k+1] = cos`` of the same angle.

    Source: Vaswani et al. 2017 (1706.03762), section 3.5.

    Raises:
        ValueError: an odd ``d_model`` (a pair would be half), a size below 1, or a base that is not above 1.
    """
    if n_positions < 1 or d_model < 1:
        raise ValueError(f"max_context_length {n_positions} and d_model {d_model} must be at least 1")
    if d_model % 2:
        raise ValueError(
            f"d_model {d_model} is odd, but sine and cosine come in pairs; use {d_model - 1 or 2} or {d_model + 1}"
        )
    if not base > 1:
        raise ValueError(f"base {base} must be above 1 (10000 in the paper)")
    # Angles in fp64: at position 10,000 an fp32 angle is already off by 1e-3 rad, however exact the sine is.
    positions = torch.arange(n_positions, dtype=torch.float64)
    frequencies = base ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    angles = positions[:, None] * frequencies[None, :]
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).to(torch.float32)


class SinusoidalPositionalEmbedding(PositionScheme):
    """Fixed waves of many lengths, added to the token vectors. Zero parameters.

    The table is the non-persistent buffer ``.pe`` (L, D): it follows the module to its device and stays out of
    checkpoints, so a longer context later is no size mismatch.

    Args:
        max_context_length: L, the number of positions (rows).
        d_model: D, the width of a row; even.
        base: the slowest pair has wavelength ``2 pi base^((D-2)/D)``.

    Raises:
        ValueError: odd ``d_model``, a size below 1, ``base <= 1``.
    """

    pe: Float[Tensor, "l d"]

    def __init__(self, max_context_length: int, d_model: int, base: float = 10000.0) -> None:
        super().__init__()
        self.max_context_length = max_context_length
        self.d_model = d_model
        self.base = base
        self.register_buffer("pe", sinusoidal_table(max_context_length, d_model, base), persistent=False)

    def embed(self, seq_len: int, start: int = 0) -> Float[Tensor, "t d"]:
        """Rows ``start .. start + seq_len - 1``, (T, D).

        Raises:
            ValueError: a position outside ``[0, L)``; names the length and L.
        """
        self.check_range(seq_len, start)
        return self.pe[start : start + seq_len]

    def forward(self, seq_len: int) -> Float[Tensor, "t d"]:
        """The vectors of positions ``0 .. seq_len - 1``, (T, D).

        Raises:
            ValueError: ``seq_len`` outside ``[1, L]``; names both numbers.
        """
        return self.embed(seq_len)

    def extra_repr(self) -> str:
        return f"max_context_length={self.max_context_length}, d_model={self.d_model}, base={self.base}"
