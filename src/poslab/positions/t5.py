"""T5's relative positions: a learned number for each bucket of distances and each head."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from poslab.positions.base import PositionScheme, distances


def t5_bucket_starts(n_buckets: int, max_distance: int) -> list[int]:
    """The smallest distance ``i - j`` of each bucket: half of them one distance each, the rest on a logarithmic scale.

    With 32 buckets up to 128, buckets 16 to 31 begin at 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99
    and 113.

    Source: Raffel et al. 2019 (1910.10683) and its code, the causal (one-sided) variant.
    """
    n_exact = n_buckets // 2
    n_logarithmic = n_buckets - n_exact
    starts = list(range(n_exact))
    distance = n_exact
    for step in range(n_logarithmic):
        # From just below n_exact * (max_distance / n_exact)^(step / n_logarithmic) up, compared in whole numbers: in
        # floating point a border that is a whole number, as 128 of (32, 256) is, can come out a hair above it.
        distance = max(distance, int(n_exact * (max_distance / n_exact) ** (step / n_logarithmic)) - 1)
        while distance**n_logarithmic < max_distance**step * n_exact ** (n_logarithmic - step):
            distance += 1
        starts.append(distance)
    return starts


MOST_BUCKETS = 1024
MOST_DISTANCE = 2**20
"""The borders are found in whole numbers, whose digits grow with both."""


class T5Bias(PositionScheme):
    """Adds a learned number per bucket and head to the scores, shared by all layers: ``n_buckets * H`` parameters.

    The scores are divided by sqrt(d_head) before it is added; nothing is divided here. No end: what is further than
    ``max_distance`` shares the last bucket.

    Source: Raffel et al. 2019 (1910.10683), section 2.1.

    Args:
        n_heads: H.
        n_buckets: even.
        max_distance: where the last bucket's logarithmic scale ends, in tokens.
        init_std: standard deviation of the normal start.

    Raises:
        ValueError: ``n_heads < 1``, an odd or too small ``n_buckets``, or ``max_distance`` not above half of it.
    """

    starts: Int64[Tensor, " buckets"]

    def __init__(self, n_heads: int, n_buckets: int = 32, max_distance: int = 128, init_std: float = 0.02) -> None:
        super().__init__()
        if n_heads < 1 or n_buckets < 2 or n_buckets % 2 or max_distance <= n_buckets // 2:
            raise ValueError(
                f"n_buckets {n_buckets} must be even, max_distance {max_distance} above half of it, "
                f"and n_heads {n_heads} at least 1"
            )
        if n_buckets > MOST_BUCKETS or max_distance > MOST_DISTANCE:
            raise ValueError(
                f"n_buckets {n_buckets} must be at most {MOST_BUCKETS}, and max_distance {max_distance} at most "
                f"{MOST_DISTANCE}"
            )
        self.n_buckets = n_buckets
        self.max_distance = max_distance
        self.weight = nn.Parameter(torch.empty(n_buckets, n_heads).normal_(std=init_std))
        self.register_buffer("starts", torch.tensor(t5_bucket_starts(n_buckets, max_distance)), persistent=False)

    def bias(self, n_queries: int, n_keys: int) -> Float[Tensor, "h t_q t_k"]:
        """Bias (H, T_q, T_k) for the last ``n_queries`` of ``n_keys`` positions."""
        # By distance first: there are n_keys of them, and n_queries * n_keys cells.
        by_distance = torch.arange(n_keys, device=self.weight.device)
        values = self.weight[torch.bucketize(by_distance, self.starts, right=True) - 1]
        behind = distances(n_queries, n_keys, self.weight.device).clamp(min=0)
        return values[behind].permute(2, 0, 1)
