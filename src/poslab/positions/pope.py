"""PoPE: polar positions, in which magnitude is content and angle is position."""

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from poslab.positions.base import Placed, PositionScheme


class PolarPositions(PositionScheme):
    """Makes a score ``sum_c softplus(q_ic) softplus(k_jc) cos((i - j) f_c - delta_hc) / sqrt(d_head)``.

    ``f_c = base^(-c/d_head)``, c = 0..d_head-1. Each column is the magnitude of a complex number; its angle depends on
    the position alone, except for the trained ``delta`` in [-2 pi, 0]: H d_head parameters, 0 at the start, shared by
    all layers. Queries and keys are ``2 d_head`` wide, values stay ``d_head``. No longest sequence.

    Source: Gopalakrishnan et al. 2025 (2509.10534).

    Args:
        n_heads: H.
        d_head: width of a head.
        base: the slowest column turns by ``base^(-(d_head-1)/d_head)`` radians per position.

    Raises:
        ValueError: a size below 1, or ``base <= 1``.
    """

    sees = "distances"

    def __init__(self, n_heads: int, d_head: int, base: float = 10000.0) -> None:
        super().__init__()
        if n_heads < 1 or d_head < 1 or not base > 1:
            raise ValueError(f"n_heads {n_heads} and d_head {d_head} must be at least 1, and base {base} above 1")
        self.base = base
        self.delta = nn.Parameter(torch.zeros(n_heads, 1, d_head))

    def rotate(self, x: Float[Tensor, "b h t d_head"], start: int = 0) -> Float[Tensor, "b h t d_rotated"]:
        """Queries (B, H, T, d_head) at positions ``start .. start + T - 1`` as complex numbers (B, H, T, 2 d_head)."""
        return self._polar(x, torch.arange(start, start + x.shape[-2], device=x.device), turned=False)

    def rotate_keys(self, x: Float[Tensor, "b h t d_head"], start: int = 0) -> Float[Tensor, "b h t d_rotated"]:
        """Keys as complex numbers (B, H, T, 2 d_head), turned by ``delta`` too."""
        return self._polar(x, torch.arange(start, start + x.shape[-2], device=x.device), turned=True)

    def rotate_at(self, x: Float[Tensor, "b h t d_head"], placed: Placed) -> Float[Tensor, "b h t d_rotated"]:
        return self._polar(x, placed.positions[:, None], turned=False)

    def rotate_keys_at(self, x: Float[Tensor, "b h t d_head"], placed: Placed) -> Float[Tensor, "b h t d_rotated"]:
        return self._polar(x, placed.positions[:, None], turned=True)

    def _polar(self, x: Tensor, positions: Int64[Tensor, "*b t"], turned: bool) -> Tensor:
        columns = torch.arange(x.shape[-1], device=x.device, dtype=torch.float32)
        angles = positions[..., None].float() * self.base ** (-columns / x.shape[-1])
        if turned:
            angles = angles + self.delta.float().clamp(-2 * math.pi, 0.0)
        magnitude = F.softplus(x.float())
        return torch.cat((magnitude * angles.cos(), magnitude * angles.sin()), dim=-1).to(x.dtype)
