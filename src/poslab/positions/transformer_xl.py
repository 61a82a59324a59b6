"""Transformer-XL's relative positions: content and distance each have their own term in the score."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from poslab.positions.base import PerLayer, PositionScheme
from poslab.positions.sinusoidal import sinusoidal_table


class TransformerXLPositions(PerLayer):
    """Makes a score ``((q_i + u_h) . k_j + (q_i + v_h) . W_h r_(i-j)) / sqrt(d_head)``.

    ``r`` is the sinusoidal vector of the distance. Each layer has its own ``W`` (D -> D, without bias), ``u`` and ``v``
    (H, d_head): ``n_layers (D^2 + 2 D)`` parameters. (The authors' code can share ``u`` and ``v`` between layers.) No
    longest sequence.

    Source: Dai et al. 2019 (1901.02860), section 3.3.

    Args:
        n_layers: number of attention layers.
        d_model: D; even.
        n_heads: H.
        max_context_length: all positions that a batch gives are below it.
        init_std: standard deviation of the normal initialisation of all three.

    Raises:
        ValueError: odd ``d_model``, or a negative ``init_std``.
    """

    sees = "distances"

    def __init__(
        self, n_layers: int, d_model: int, n_heads: int, max_context_length: int, init_std: float = 0.02
    ) -> None:
        if d_model % 2 or init_std < 0:
            raise ValueError(f"d_model {d_model} must be even, and init_std {init_std} not negative")
        super().__init__(TransformerXLLayer(d_model, n_heads, max_context_length, init_std) for _ in range(n_layers))


class TransformerXLLayer(PositionScheme):
    """One layer of `TransformerXLPositions`."""

    def __init__(self, d_model: int, n_heads: int, n_positions: int, init_std: float) -> None:
        super().__init__()
        self.width, self.n_positions, d_head = d_model, n_positions, d_model // n_heads
        self.weight = nn.Parameter(torch.empty(n_heads, d_head, d_model).normal_(std=init_std))
        self.u = nn.Parameter(torch.empty(n_heads, 1, d_head).normal_(std=init_std))
        self.v = nn.Parameter(torch.empty(n_heads, 1, d_head).normal_(std=init_std))

    def content_bias(
        self,
        q: Float[Tensor, "b h t_q d_head"],
        k: Float[Tensor, "b h t_k d_head"],
        features: Tensor | None,
        behind: Int64[Tensor, "*b t_q t_k"],
    ) -> Float[Tensor, "b h t_q t_k"]:
        """Bias (B, H, T_q, T_k): the three terms of the score beside ``q_i . k_j``."""
        # Consecutive positions are in a matrix; others may be as far apart as the longest sequence.
        n = k.shape[-2] if behind.dim() == 2 else self.n_positions
        vectors = sinusoidal_table(n, self.width).to(q.device, q.dtype)
        of_distance = torch.einsum("hcd,td->htc", self.weight.to(q.dtype), vectors)
        by_distance = (q + self.v.to(q.dtype)) @ of_distance.transpose(-1, -2)
        rows = behind.clamp(min=0)
        by_position = by_distance.gather(-1, rows.expand(*by_distance.shape[:-1], -1))
        by_key = self.u.to(k.dtype) @ k.transpose(-1, -2)
        return (by_key + by_position).float() / q.shape[-1] ** 0.5
