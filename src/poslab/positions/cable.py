"""CABLE: context-aware biases, a distance to which each token adds a part of its own."""

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from poslab.positions.base import PerLayer
from poslab.positions.forgetting import ForgettingLayer


class Cable(PerLayer):
    """Adds ``-(s_(j+1) + .. + s_i)`` to the score of query i and key j, with ``s_t = softplus(w_h . x_t + b_h)``.

    x is the input of the layer. Since ``-softplus(z) = log sigmoid(-z)``, this is `ForgettingAttention` with the signs
    of ``w`` and ``b`` turned; only the start differs. ``n_layers (D + 1) H`` parameters. No longest sequence. The
    scores are scaled by ``1 / sqrt(d_head)`` as everywhere here; the authors' code does not scale them.

    Source: Veisi et al. 2025 (2503.08067), section 3, and its code, which starts ``w`` as torch's linear layers do.

    Args:
        n_layers: number of attention layers.
        d_model: D.
        n_heads: H.
    """

    sees = "order"

    def __init__(self, n_layers: int, d_model: int, n_heads: int) -> None:
        super().__init__(CableLayer(d_model, n_heads) for _ in range(n_layers))


class CableLayer(ForgettingLayer):
    """One layer of `Cable`."""

    def features(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b h t 1"]:
        """What each token adds to the bias of the keys before it (B, H, T, 1), in fp32."""
        return -F.softplus(self.gate(x).float()).transpose(1, 2).unsqueeze(-1)
