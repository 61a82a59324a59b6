"""Hard ALiBi: some heads see only the last few tokens, the rest see everything."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from poslab.positions.base import PositionScheme, distances


class HardALiBi(PositionScheme):
    """Head h of the first m sees the last h tokens (1, 2, .., m, itself included); the others see all before them.

    Zero parameters, and no end.

    Source: Jelassi et al. 2024 (2402.01032), section 3.

    Args:
        n_heads: H.
        n_windows: m, heads with a window; half of the heads if not given.

    Raises:
        ValueError: ``n_heads < 1`` or ``n_windows`` outside ``[0, H]``; names the numbers.
    """

    windows: Float[Tensor, " h"]

    def __init__(self, n_heads: int, n_windows: int | None = None) -> None:
        super().__init__()
        n_windows = n_heads // 2 if n_windows is None else n_windows
        if n_heads < 1 or not 0 <= n_windows <= n_heads:
            raise ValueError(f"n_windows {n_windows} must lie in [0, n_heads], and n_heads is {n_heads}")
        sizes = [float(window) for window in range(1, n_windows + 1)] + [float("inf")] * (n_heads - n_windows)
        self.register_buffer("windows", torch.tensor(sizes), persistent=False)

    def bias(self, n_queries: int, n_keys: int) -> Float[Tensor, "h t_q t_k"]:
        """0 where a head sees a key, ``-inf`` where it does not; (H, T_q, T_k). Every query sees itself."""
        hidden: Bool[Tensor, "h t_q t_k"] = (
            distances(n_queries, n_keys, self.windows.device) >= self.windows[:, None, None]
        )
        return torch.zeros(hidden.shape, device=hidden.device).masked_fill(hidden, float("-inf"))
