"""The fixed sine and cosine table of the original transformer."""

import torch
from jaxtyping import Float
from torch import Tensor

from poslab.positions.table import PositionTable


def sinusoidal_table(n_positions: int, d_model: int, base: float = 10000.0) -> Float[Tensor, "l d"]:
    """The table (L, D) in fp32: ``pe[p, 2k] = sin(p / base^(2k/D))`` and ``pe[p, 2k+1] = cos`` of the same angle.

    Source: Vaswani et al. 2017 (1706.03762), section 3.5.

    Raises:
        ValueError: an odd ``d_model`` (sine and cosine need a column each), a size below 1, or a base not above 1.
    """
    if n_positions < 1 or d_model < 1:
        raise ValueError(f"max_context_length {n_positions} and d_model {d_model} must be at least 1")
    if d_model % 2:
        raise ValueError(
            f"d_model {d_model} is odd, but sine and cosine come in pairs; use an even d_model, such as {d_model + 1}"
        )
    if not base > 1:
        raise ValueError(f"base {base} must be above 1 (10000 in the paper)")
    # Angles in fp64: at position 10,000 the rounding error of an fp32 angle is about 1e-3 rad.
    positions = torch.arange(n_positions, dtype=torch.float64)
    frequencies = base ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    angles = positions[:, None] * frequencies[None, :]
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).to(torch.float32)


class SinusoidalPositionalEmbedding(PositionTable):
    """Fixed sine and cosine waves of several wavelengths, added to the token vectors. No parameters.

    The table is the non-persistent buffer ``.pe`` (L, D): it moves with the module to a device and is not part of
    checkpoints, so that a checkpoint loads into a model with a longer context.

    Args:
        max_context_length: L, the number of positions (rows).
        d_model: D, the width of a row; even.
        base: the slowest pair has wavelength ``2 pi base^((D-2)/D)``, in tokens.
        train_offset: ``none``, or ``random``: each training batch starts at a random row.
        train_positions: ``none``, or ``random``: each training batch gets random rows in increasing order.
        scale: factor of the table. With 1 its root mean square is 0.707; a learned table starts at 0.02.

    Raises:
        ValueError: odd ``d_model``, a size below 1, ``base <= 1``, a negative ``scale``, an unknown choice, or both
            choices ``random``.
    """

    pe: Float[Tensor, "l d"]

    def __init__(
        self,
        max_context_length: int,
        d_model: int,
        base: float = 10000.0,
        train_offset: str = "none",
        train_positions: str = "none",
        scale: float = 1.0,
    ) -> None:
        super().__init__(max_context_length, d_model, train_offset, train_positions)
        if scale < 0:
            raise ValueError(f"scale {scale} must not be negative")
        self.base, self.scale = base, scale
        self.register_buffer("pe", scale * sinusoidal_table(max_context_length, d_model, base), persistent=False)

    def rows(self) -> Float[Tensor, "l d"]:
        """The whole table, (L, D)."""
        return self.pe

    def extend(self, max_context_length: int) -> None:
        """Rebuild the table with ``max_context_length`` rows if that is longer; the existing rows do not change."""
        if max_context_length > self.max_context_length:
            self.max_context_length = max_context_length
            table = self.scale * sinusoidal_table(max_context_length, self.d_model, self.base)
            self.pe = table.to(self.pe)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, base={self.base}, scale={self.scale}"
