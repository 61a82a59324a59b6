"""Sandwich: the inner product of two sinusoidal position vectors as a bias."""

import torch
from jaxtyping import Float
from torch import Tensor

from poslab.positions.base import PositionScheme, distances

MOST_WIDTH = 2**16


class Sandwich(PositionScheme):
    """Adds ``(sum_k cos((i - j) / base^(2k/d)) - d/2) / r_h`` to the scores, k = 1..d/2, with ``r_h = 8h/H``, h = 1..H.

    The sum is the inner product of the sinusoidal vectors of the two positions. It falls roughly with the logarithm of
    the distance. No parameters and no longest sequence.

    Source: Chi et al. 2022 (2212.10356), section 5.

    Args:
        n_heads: H.
        d_bar: d, the width of the sinusoidal vectors, independent of the model's; even.
        base: as in the sinusoidal table.

    Raises:
        ValueError: ``n_heads < 1``, ``d_bar`` odd, below 2 or above 65,536, or ``base <= 1``.
    """

    sees = "distances"

    ratios: Float[Tensor, " h"]

    def __init__(self, n_heads: int, d_bar: int = 128, base: float = 10000.0) -> None:
        super().__init__()
        if n_heads < 1 or d_bar % 2 or not 2 <= d_bar <= MOST_WIDTH or not base > 1:
            raise ValueError(
                f"n_heads {n_heads} must be at least 1, d_bar {d_bar} even and in 2 to {MOST_WIDTH}, and base {base} "
                "above 1"
            )
        self.d_bar, self.base = d_bar, base
        ratios = torch.arange(1, n_heads + 1) * (8 / n_heads)
        self.register_buffer("ratios", ratios, persistent=False)

    def bias(self, n_queries: int, n_keys: int) -> Float[Tensor, "h t_q t_k"]:
        """Bias (H, T_q, T_k) in fp32 for the last ``n_queries`` of ``n_keys`` positions."""
        device = self.ratios.device
        pairs = torch.arange(1, self.d_bar // 2 + 1, device=device, dtype=torch.float32)
        by_distance = torch.arange(n_keys, device=device, dtype=torch.float32)
        products = torch.outer(by_distance, self.base ** (-2 * pairs / self.d_bar)).cos().sum(-1) - self.d_bar / 2
        behind = distances(n_queries, n_keys, device).clamp(min=0)
        return products[behind] / self.ratios.float()[:, None, None]
