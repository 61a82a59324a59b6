"""A small network from the distance to the key to a bias."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from poslab.positions.base import PositionScheme, distances

MOST_HIDDEN = 2**16
MOST_DEPTH = 64


class MLPBias(PositionScheme):
    """Adds ``f_h(log(i - j + 1))`` to the scores, where ``f`` is a network with SiLU layers, shared by all layers.

    No longest sequence, but far distances are inputs that the network has not seen.

    Source: Liu et al. 2021 (Swin V2, 2111.09883), section 3.3, for a network on log distances instead of a table.

    Args:
        n_heads: H.
        hidden: width of the hidden layers.
        depth: number of hidden layers.
        log_distance: False gives the network the distance itself.

    Raises:
        ValueError: a size below 1, ``hidden`` above 65,536 or ``depth`` above 64; names the numbers.
    """

    sees = "distances"

    def __init__(self, n_heads: int, hidden: int = 32, depth: int = 2, log_distance: bool = True) -> None:
        super().__init__()
        if not (n_heads >= 1 and 1 <= hidden <= MOST_HIDDEN and 1 <= depth <= MOST_DEPTH):
            raise ValueError(
                f"n_heads {n_heads} must be at least 1, hidden {hidden} in 1 to {MOST_HIDDEN}, "
                f"and depth {depth} in 1 to {MOST_DEPTH}"
            )
        layers = [nn.Sequential(nn.Linear(hidden if index else 1, hidden), nn.SiLU()) for index in range(depth)]
        self.network = nn.Sequential(*layers, nn.Linear(hidden, n_heads))
        self.log_distance = log_distance

    def bias(self, n_queries: int, n_keys: int) -> Float[Tensor, "h t_q t_k"]:
        """Bias (H, T_q, T_k) for the last ``n_queries`` of ``n_keys`` positions."""
        weight = next(self.network.parameters())
        # Once for each distance instead of once for each pair of positions.
        by_distance = torch.arange(n_keys, device=weight.device, dtype=torch.float32)
        inputs = by_distance.log1p() if self.log_distance else by_distance
        values = self.network(inputs[:, None].to(weight.dtype))
        return values[distances(n_queries, n_keys, weight.device).clamp(min=0)].permute(2, 0, 1)
