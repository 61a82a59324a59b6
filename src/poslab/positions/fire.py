"""FIRE: a small network from the distance, relative to how far back one could look, to a bias."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from poslab.positions.base import PositionScheme, distances

MOST_HIDDEN = 2**16


class FIRE(PositionScheme):
    """Adds ``f_h(psi(i - j) / psi(max(L0, i)))`` to the scores, with ``psi(x) = log(c x + 1)``.

    ``f`` is a network with one hidden layer, ``c`` and the threshold ``L0`` are learned. The input lies in [0, 1]
    whatever the length, so a longer sequence asks for nothing new.

    Source: Li et al. 2023 (2310.04418), section 3. A threshold far above the training length weakens it.

    Args:
        n_heads: H.
        hidden: width of the network.
        c: where the learned ``c`` starts.
        threshold: where the learned ``L0`` starts, in tokens.

    Raises:
        ValueError: a size below 1, or ``c`` or ``threshold`` not above 0.
    """

    def __init__(self, n_heads: int, hidden: int = 32, c: float = 0.1, threshold: float = 64.0) -> None:
        super().__init__()
        if hidden > MOST_HIDDEN:
            raise ValueError(
                f"hidden {hidden} must be at most {MOST_HIDDEN}: each pair of positions has so many numbers"
            )
        if n_heads < 1 or hidden < 1 or not c > 0 or not threshold > 0:
            raise ValueError(
                f"n_heads {n_heads} and hidden {hidden} must be at least 1, c {c} and threshold {threshold} above 0"
            )
        self.network = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, n_heads))
        self.c = nn.Parameter(torch.tensor(float(c)))
        # Learned as a factor: a step of the optimiser then moves it in proportion, at any scale.
        self.threshold_factor = nn.Parameter(torch.tensor(1.0))
        self.initial_threshold = float(threshold)

    def bias(self, n_queries: int, n_keys: int) -> Float[Tensor, "h t_q t_k"]:
        """Bias (H, T_q, T_k) for the last ``n_queries`` of ``n_keys`` positions."""
        behind = distances(n_queries, n_keys, self.c.device).clamp(min=0).float()
        queries = torch.arange(n_keys - n_queries, n_keys, device=self.c.device, dtype=torch.float32)
        reach = torch.maximum(queries, (self.threshold_factor * self.initial_threshold).abs())
        # The clamp is for c or a threshold of exactly 0, where the first query would be 0 / 0.
        relative = self._psi(behind) / self._psi(reach).clamp(min=1e-6)[:, None]
        first = self.network[0]
        assert isinstance(first, nn.Linear)
        return self.network(relative[..., None].to(first.weight.dtype)).permute(2, 0, 1)

    def _psi(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        # The magnitude keeps psi defined wherever the optimiser takes c.
        return torch.log1p(self.c.float().abs() * x)
