"""xPos: rotary positions whose scores also fade with the distance."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from poslab.positions.base import Placed
from poslab.positions.rope import RotaryPositions


class XPos(RotaryPositions):
    """RoPE with column pair k of a query at position p times ``z_k^(p/s)``, and of a key divided by it.

    ``z_k = (2k/d_head + gamma) / (1 + gamma)`` is at most 1, so a score is damped by ``z_k^((i-j)/s)``: fast pairs fade
    sooner. Scores still depend on positions only through the offset. No parameters and no longest sequence.

    Source: Sun et al. 2022 (2212.10554), section 2.2.

    Args:
        d_head: width of a head; even.
        base: as in `RotaryPositions`.
        gamma: the smaller, the stronger the fastest pair is damped; above 0.
        scale_base: s, in tokens.

    Raises:
        ValueError: odd ``d_head``, ``base <= 1``, or ``gamma`` or ``scale_base`` not above 0.
    """

    def __init__(self, d_head: int, base: float = 10000.0, gamma: float = 0.4, scale_base: float = 512.0) -> None:
        super().__init__(d_head, base)
        if not gamma > 0 or not scale_base > 0:
            raise ValueError(f"gamma {gamma} and scale_base {scale_base} must be above 0")
        self.gamma, self.scale_base = gamma, scale_base

    def rotate(self, x: Float[Tensor, "b h t d_head"], start: int = 0) -> Float[Tensor, "b h t d_head"]:
        """Rotate and scale queries (B, H, T, d_head) at positions ``start .. start + T - 1``."""
        return self._scaled(x, torch.arange(start, start + x.shape[-2], device=x.device), 1.0)

    def rotate_keys(self, x: Float[Tensor, "b h t d_head"], start: int = 0) -> Float[Tensor, "b h t d_head"]:
        """Rotate keys (B, H, T, d_head) and divide them by the scale of their positions."""
        return self._scaled(x, torch.arange(start, start + x.shape[-2], device=x.device), -1.0)

    def rotate_at(self, x: Float[Tensor, "b h t d_head"], placed: Placed) -> Float[Tensor, "b h t d_head"]:
        return self._scaled(x, placed.positions[:, None], 1.0)

    def rotate_keys_at(self, x: Float[Tensor, "b h t d_head"], placed: Placed) -> Float[Tensor, "b h t d_head"]:
        return self._scaled(x, placed.positions[:, None], -1.0)

    def _scaled(self, x: Tensor, positions: Int64[Tensor, "*b t"], sign: float) -> Tensor:
        pairs = torch.arange(0, self.d_head, 2, device=x.device, dtype=torch.float32)
        z = (pairs / self.d_head + self.gamma) / (1 + self.gamma)
        scale = z ** (sign * positions[..., None] / self.scale_base)
        return (self._turned(x.float(), positions) * scale.repeat_interleave(2, dim=-1)).to(x.dtype)
