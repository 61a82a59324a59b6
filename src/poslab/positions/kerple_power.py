"""KERPLE, power: a bias that falls with a trained power of the distance."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from poslab.positions.base import PositionScheme, distances


class KerplePower(PositionScheme):
    """Adds ``-r1_h (i - j)^r2_h`` to the scores; ``r1 > 0`` and ``0 < r2 < 2`` are trained.

    2 H parameters, shared by all layers; the authors' code has them in each layer. They are stored as the logarithm of
    ``r1`` and as the logit of ``r2 / 2``, which keeps them in range; the authors clamp them. No longest sequence. With
    ``r2 = 1`` it is ALiBi.

    Source: Chi et al. 2022 (2205.09921), section 4, and its code for the start: r1 in [0, 1), r2 in [0, 2), uniform.

    Args:
        n_heads: H.

    Raises:
        ValueError: ``n_heads < 1``.
    """

    sees = "distances"

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        if n_heads < 1:
            raise ValueError(f"n_heads {n_heads} must be at least 1")
        self.log_r1 = nn.Parameter(torch.rand(n_heads).clamp(min=0.01).log())
        self.logit_r2 = nn.Parameter(torch.rand(n_heads).clamp(0.005, 0.995).logit())

    def bias(self, n_queries: int, n_keys: int) -> Float[Tensor, "h t_q t_k"]:
        """Bias (H, T_q, T_k) in fp32 for the last ``n_queries`` of ``n_keys`` positions."""
        behind = distances(n_queries, n_keys, self.log_r1.device).clamp(min=0).float()
        r1, r2 = self.log_r1.float().exp(), 2 * self.logit_r2.float().sigmoid()
        return -r1[:, None, None] * behind ** r2[:, None, None]
