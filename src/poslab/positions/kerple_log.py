"""KERPLE, logarithmic: a bias that falls with the logarithm of the distance, at a trained rate."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from poslab.positions.base import PositionScheme, distances


class KerpleLog(PositionScheme):
    """Adds ``-r1_h log(1 + r2_h (i - j))`` to the scores; ``r1`` and ``r2`` are trained and above 0.

    2 H parameters, shared by all layers; the authors' code has them in each layer. They are stored as logarithms, which
    keeps them above 0; the authors clamp them at 0.01. No longest sequence.

    Source: Chi et al. 2022 (2205.09921), section 4, and its code for the start: r1 in [0, 2), r2 in [0, 1), uniform.

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
        # The authors' clamp is also the least value that a parameter starts from.
        self.log_r1 = nn.Parameter((2 * torch.rand(n_heads)).clamp(min=0.01).log())
        self.log_r2 = nn.Parameter(torch.rand(n_heads).clamp(min=0.01).log())

    def bias(self, n_queries: int, n_keys: int) -> Float[Tensor, "h t_q t_k"]:
        """Bias (H, T_q, T_k) in fp32 for the last ``n_queries`` of ``n_keys`` positions."""
        behind = distances(n_queries, n_keys, self.log_r1.device).clamp(min=0)
        r1, r2 = (log.float().exp()[:, None, None] for log in (self.log_r1, self.log_r2))
        return -r1 * torch.log1p(r2 * behind)
