"""ALiBi with slopes that are trained."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from poslab.positions.alibi import alibi_slopes
from poslab.positions.base import PositionScheme, distances


class LearnedALiBi(PositionScheme):
    """Adds ``-exp(m_h) (i - j)`` to the score of query i and key j in head h, where ``m_h`` is trained.

    It starts at the logarithm of ALiBi's slope.

    H parameters, shared by all layers. No longest sequence. The logarithm keeps every slope above 0.

    Source: Press et al. 2021 (2108.12409), section 3, which tried trained slopes and found no gain.

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
        self.log_slopes = nn.Parameter(torch.tensor(alibi_slopes(n_heads)).log())

    def bias(self, n_queries: int, n_keys: int) -> Float[Tensor, "h t_q t_k"]:
        """Bias (H, T_q, T_k) in fp32 for the last ``n_queries`` of ``n_keys`` positions."""
        behind = distances(n_queries, n_keys, self.log_slopes.device)
        return -self.log_slopes.float().exp()[:, None, None] * behind
