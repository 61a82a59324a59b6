"""Shaw's relative positions: each query is compared with a trained vector per distance."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from poslab.positions.base import PerLayer, PositionScheme

MOST_DISTANCE = 2**20


class ShawRelativePositions(PerLayer):
    """Adds ``q_i . a_min(i-j, K) / sqrt(d_head)`` to the scores; each layer has a table ``a`` of K + 1 vectors.

    The heads of a layer share its table: ``n_layers (K + 1) d_head`` parameters. No longest sequence: all distances
    from K on share the last row. The vectors that the paper also adds to the values are left out; its section 4.3 finds
    them not needed.

    Source: Shaw et al. 2018 (1803.02155), equation 4.

    Args:
        n_layers: number of attention layers.
        d_head: width of a head.
        max_distance: K, in tokens.
        init_std: standard deviation of the normal initialisation.

    Raises:
        ValueError: ``max_distance`` outside ``[1, 2^20]`` or a negative ``init_std``.
    """

    sees = "distances"

    def __init__(self, n_layers: int, d_head: int, max_distance: int = 16, init_std: float = 0.02) -> None:
        if not 1 <= max_distance <= MOST_DISTANCE or init_std < 0:
            raise ValueError(
                f"max_distance {max_distance} must be in 1 to {MOST_DISTANCE}, and init_std {init_std} not negative"
            )
        super().__init__(ShawLayer(d_head, max_distance, init_std) for _ in range(n_layers))


class ShawLayer(PositionScheme):
    """One layer of `ShawRelativePositions`."""

    def __init__(self, d_head: int, max_distance: int, init_std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_distance + 1, d_head).normal_(std=init_std))

    def content_bias(
        self,
        q: Float[Tensor, "b h t_q d_head"],
        k: Float[Tensor, "b h t_k d_head"],
        features: Tensor | None,
        behind: Int64[Tensor, "*b t_q t_k"],
    ) -> Float[Tensor, "b h t_q t_k"]:
        """Bias (B, H, T_q, T_k): the scaled product of each query with the vector of the distance to each key."""
        by_distance = (q @ self.weight.to(q.dtype).T).float() / q.shape[-1] ** 0.5
        rows = behind.clamp(0, len(self.weight) - 1)
        return by_distance.gather(-1, rows.expand(*by_distance.shape[:-1], -1))
