"""T5's relative positions: one learned bias per head and bucket of distances."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from poslab.positions.base import PositionScheme, distances


def t5_bucket_starts(n_buckets: int, max_distance: int) -> list[int]:
    """The smallest distance ``i - j`` of each bucket, in tokens.

    The first half of the buckets has one distance each; the second half is logarithmic up to ``max_distance``. For 32
    buckets and distance 128, buckets 16 to 31 start at 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99 and
    113.

    Source: Raffel et al. 2019 (1910.10683) and its code, the causal (one-sided) variant.
    """
    n_exact = n_buckets // 2
    n_logarithmic = n_buckets - n_exact
    starts = list(range(n_exact))
    distance = n_exact
    for step in range(n_logarithmic):
        # The bucket starts at the smallest integer that is at least
        # n_exact * (max_distance / n_exact)^(step / n_logarithmic). The search starts just below it and compares
        # integers: rounding errors of floats would move a start that is an exact integer, such as 128 for (32, 256).
        distance = max(distance, int(n_exact * (max_distance / n_exact) ** (step / n_logarithmic)) - 1)
        while distance**n_logarithmic < max_distance**step * n_exact ** (n_logarithmic - step):
            distance += 1
        starts.append(distance)
    return starts


MOST_BUCKETS = 1024
MOST_DISTANCE = 2**20
"""Upper limits: `t5_bucket_starts` compares integers whose number of digits grows with both values."""


class T5Bias(PositionScheme):
    """Adds a learned bias per bucket and head to the scores; all layers share its ``n_buckets * H`` parameters.

    The attention divides the scores by sqrt(d_head) before it adds the bias; the bias itself is not scaled. There is no
    longest sequence: all distances from the start of the last bucket on share that bucket.

    Source: Raffel et al. 2019 (1910.10683), section 2.1.

    Args:
        n_heads: H.
        n_buckets: number of buckets; even.
        max_distance: distance at which the logarithmic scale ends, in tokens.
        init_std: standard deviation of the normal initialisation.

    Raises:
        ValueError: ``n_heads < 1``, ``n_buckets`` odd, below 2 or above 1024, or ``max_distance`` not above
            ``n_buckets / 2`` or above 2^20; names the numbers.
    """

    sees = "distances"

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
        # Look up each of the n_keys distances once instead of each of the n_queries * n_keys cells.
        by_distance = torch.arange(n_keys, device=self.weight.device)
        values = self.weight[torch.bucketize(by_distance, self.starts, right=True) - 1]
        behind = distances(n_queries, n_keys, self.weight.device).clamp(min=0)
        return values[behind].permute(2, 0, 1)
