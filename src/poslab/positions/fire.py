"""FIRE: a small network that maps the distance to a key, divided by the query's position, to a bias."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from poslab.positions.base import PositionScheme, distances

MOST_HIDDEN = 2**16


class FIRE(PositionScheme):
    """Adds ``f_h(psi(i - j) / psi(max(L0, i)))`` to the scores, with ``psi(x) = log(c x + 1)``.

    ``f`` is a network with one hidden layer; ``c`` and the threshold ``L0`` are learned. The input of the network is in
    [0, 1] for any sequence length, so a longer sequence gives no inputs outside the trained range. A threshold far
    above the training length weakens the scheme.

    Source: Li et al. 2023 (2310.04418), section 3.

    Args:
        n_heads: H.
        hidden: width of the hidden layer.
        c: initial value of the learned ``c``.
        threshold: initial value of the learned ``L0``, in tokens.

    Raises:
        ValueError: a size below 1, ``hidden`` above 65,536, or ``c`` or ``threshold`` not above 0; names the numbers.
    """

    def __init__(self, n_heads: int, hidden: int = 32, c: float = 0.1, threshold: float = 64.0) -> None:
        super().__init__()
        if hidden > MOST_HIDDEN:
            raise ValueError(
                f"hidden {hidden} must be at most {MOST_HIDDEN}: each pair of positions needs that many numbers"
            )
        if n_heads < 1 or hidden < 1 or not c > 0 or not threshold > 0:
            raise ValueError(
                f"n_heads {n_heads} and hidden {hidden} must be at least 1, c {c} and threshold {threshold} above 0"
            )
        self.network = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, n_heads))
        self.c = nn.Parameter(torch.tensor(float(c)))
        # Learned as a factor of the initial value, so that an optimiser step changes the threshold in proportion.
        self.threshold_factor = nn.Parameter(torch.tensor(1.0))
        self.initial_threshold = float(threshold)

    def bias(self, n_queries: int, n_keys: int) -> Float[Tensor, "h t_q t_k"]:
        """Bias (H, T_q, T_k) for the last ``n_queries`` of ``n_keys`` positions, in fp32 also under autocast."""
        # In bf16 the inputs of distant keys, close to 1, would be rounded to a few values.
        with torch.autocast(self.c.device.type, enabled=False):
            return self._bias(n_queries, n_keys)

    def _bias(self, n_queries: int, n_keys: int) -> Float[Tensor, "h t_q t_k"]:
        behind = distances(n_queries, n_keys, self.c.device).clamp(min=0).float()
        queries = torch.arange(n_keys - n_queries, n_keys, device=self.c.device, dtype=torch.float32)
        reach = torch.maximum(queries, (self.threshold_factor * self.initial_threshold).abs())
        # The clamp avoids 0 / 0 at the first query if c or the threshold is exactly 0.
        relative = self._psi(behind) / self._psi(reach).clamp(min=1e-6)[:, None]
        first = self.network[0]
        assert isinstance(first, nn.Linear)
        return self.network(relative[..., None].to(first.weight.dtype)).permute(2, 0, 1)

    def _psi(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        # The absolute value keeps psi defined if the optimiser makes c negative.
        return torch.log1p(self.c.float().abs() * x)
