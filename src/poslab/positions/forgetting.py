"""Forgetting attention: each token decides how much of all earlier tokens is forgotten."""

from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from poslab.positions.base import PerLayer, PositionScheme


class ForgettingAttention(PerLayer):
    """Adds ``log f_(j+1) + .. + log f_i`` to the score of query i and key j, with ``f_t = sigmoid(w_h . x_t + b_h)``.

    x is the input of the layer. With constant gates it is ALiBi with slopes ``-log f``. Each layer has its own gates:
    ``n_layers (D + 1) H`` parameters. No longest sequence.

    Source: Lin et al. 2025 (Forgetting Transformer, 2503.02130), section 3: there also called data-dependent ALiBi.

    Args:
        n_layers: number of attention layers.
        d_model: D.
        n_heads: H.
        bias_init: start of every ``b``; 0 forgets half at each token, 5 keeps 0.993.
    """

    sees = "order"

    def __init__(self, n_layers: int, d_model: int, n_heads: int, bias_init: float = 0.0) -> None:
        super().__init__(ForgettingLayer(d_model, n_heads, bias_init) for _ in range(n_layers))


class ForgettingLayer(PositionScheme):
    """One layer of `ForgettingAttention`."""

    def __init__(self, d_model: int, n_heads: int, bias_init: float | None = None) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, n_heads)
        if bias_init is not None:
            nn.init.constant_(self.gate.bias, bias_init)

    def features(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b h t 1"]:
        """The logarithm of each token's gate (B, H, T, 1), in fp32."""
        return F.logsigmoid(self.gate(x).float()).transpose(1, 2).unsqueeze(-1)

    def content_bias(
        self,
        q: Float[Tensor, "b h t_q d_head"],
        k: Float[Tensor, "b h t_k d_head"],
        features: Tensor | None,
        behind: Int64[Tensor, "*b t_q t_k"],
    ) -> Float[Tensor, "b h t_q t_k"]:
        """Bias (B, H, T_q, T_k): the sum of the logarithms after the key up to the query."""
        assert features is not None
        forgotten = features.squeeze(-1).cumsum(-1)
        return forgotten[..., -q.shape[-2] :, None] - forgotten[..., None, :]
