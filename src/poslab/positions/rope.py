"""Rotary positions (RoPE): queries and keys are rotated by an angle proportional to their position."""

import torch
from jaxtyping import Float
from torch import Tensor

from poslab.positions.base import PositionScheme


class RotaryPositions(PositionScheme):
    """Rotates columns ``(2k, 2k+1)`` of every query and key at position p by ``p / base^(2k/d_head)`` radians.

    A score then depends on positions only through the offset ``i - j``. No parameters and no longest sequence.

    Source: Su et al. 2021 (2104.09864), section 3.2, with interleaved pairs as in the paper. The half-split layout of
    other implementations is a fixed permutation of the columns.

    Args:
        d_head: width of a head; even.
        base: the slowest pair rotates by ``base^(-(d_head-2)/d_head)`` radians per position.

    Raises:
        ValueError: odd ``d_head``, or ``base <= 1``.
    """

    def __init__(self, d_head: int, base: float = 10000.0) -> None:
        super().__init__()
        if d_head < 2 or d_head % 2:
            raise ValueError(
                f"d_head {d_head} is odd, but rotary positions turn pairs of columns; "
                "choose d_model and n_heads so that d_model / n_heads is even"
            )
        if not base > 1:
            raise ValueError(f"base {base} must be above 1 (10000 in the paper)")
        self.d_head = d_head
        self.base = base

    def rotate(self, x: Float[Tensor, "b h t d_head"], start: int = 0) -> Float[Tensor, "b h t d_head"]:
        """Rotate queries or keys (B, H, T, d_head) at positions ``start .. start + T - 1``; computed in fp32."""
        positions = torch.arange(start, start + x.shape[-2], device=x.device, dtype=torch.float32)
        # Not a buffer: casting the module to bf16 would round the frequencies, and large positions amplify the error.
        pairs = torch.arange(0, self.d_head, 2, device=x.device, dtype=torch.float32)
        angles = torch.outer(positions, self.base ** (-pairs / self.d_head))
        cos, sin = angles.cos(), angles.sin()
        even, odd = x[..., 0::2].float(), x[..., 1::2].float()
        rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        return rotated.flatten(-2).to(x.dtype)

    def extra_repr(self) -> str:
        return f"d_head={self.d_head}, base={self.base}"
