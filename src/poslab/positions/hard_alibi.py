"""Hard ALiBi: some heads attend only to the last few tokens, the others to all earlier tokens."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from poslab.positions.base import PositionScheme, distances


class HardALiBi(PositionScheme):
    """Restricts head h of the first m heads (h = 1..m) to the last h tokens, the query's own included.

    The other heads attend to all earlier tokens. No parameters and no longest sequence.

    Source: Jelassi et al. 2024 (2402.01032), section 3.

    Args:
        n_heads: H.
        n_windows: m, the number of restricted heads; None: half of the heads, rounded down.

    Raises:
        ValueError: ``n_heads < 1`` or ``n_windows`` outside ``[0, H]``; names the numbers.
    """

    sees = "distances"

    windows: Float[Tensor, " h"]

    def __init__(self, n_heads: int, n_windows: int | None = None) -> None:
        super().__init__()
        n_windows = n_heads // 2 if n_windows is None else n_windows
        if n_heads < 1 or not 0 <= n_windows <= n_heads:
            raise ValueError(f"n_windows {n_windows} must be in [0, n_heads], and n_heads is {n_heads}")
        sizes = [float(window) for window in range(1, n_windows + 1)] + [float("inf")] * (n_heads - n_windows)
        self.register_buffer("windows", torch.tensor(sizes), persistent=False)
        if n_windows == 0:
            self.note = f"pos=hard_alibi with model.n_heads={n_heads} restricts no head and is pos=none; use more heads"

    def bias(self, n_queries: int, n_keys: int) -> Float[Tensor, "h t_q t_k"]:
        """Bias (H, T_q, T_k): 0 where a head may attend to a key, else ``-inf``. Every query attends to itself."""
        hidden: Bool[Tensor, "h t_q t_k"] = (
            distances(n_queries, n_keys, self.windows.device) >= self.windows[:, None, None]
        )
        return torch.zeros(hidden.shape, device=hidden.device).masked_fill(hidden, float("-inf"))
