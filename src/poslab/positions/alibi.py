"""ALiBi: a bias that lowers a score linearly with the distance to the key; each head has its own slope."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from poslab.positions.base import PositionScheme, distances


def alibi_slopes(n_heads: int) -> list[float]:
    """The slope of each of the H heads: ``2^(-8h/H)`` for h = 1..H if H is a power of two.

    Otherwise: the slopes for c heads, where c is the largest power of two below H, then every other slope for 2c heads
    until there are H.

    Source: Press et al. 2021 (2108.12409) and its code (``get_slopes``).
    """
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2 ** (-8 * head / (2 * power)) for head in range(1, 2 * power + 1, 2)]
    return slopes + between[: n_heads - power]


class ALiBi(PositionScheme):
    """Adds ``-m_h (i - j)`` to the score of query i and key j in head h. No parameters and no longest sequence.

    With one head the slope is 1/256, which is almost no position information. Consider this when comparing numbers of
    heads.

    Source: Press et al. 2021 (2108.12409).

    Args:
        n_heads: H.

    Raises:
        ValueError: ``n_heads < 1``.
    """

    sees = "distances"

    slopes: Float[Tensor, " h"]

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        if n_heads < 1:
            raise ValueError(f"n_heads {n_heads} must be at least 1")
        self.register_buffer("slopes", torch.tensor(alibi_slopes(n_heads)), persistent=False)
        if n_heads == 1:
            self.note = "pos=alibi with model.n_heads=1 is nearly pos=none: its only slope is 2^-8; use more heads"

    def bias(self, n_queries: int, n_keys: int) -> Float[Tensor, "h t_q t_k"]:
        """Bias (H, T_q, T_k) in fp32 for the last ``n_queries`` of ``n_keys`` positions."""
        behind = distances(n_queries, n_keys, self.slopes.device)
        return -self.slopes.float()[:, None, None] * behind
