"""CoPE: the position of a key is the number of tokens since it that the query counts."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from poslab.positions.base import PerLayer, PositionScheme

MOST_POSITIONS = 2**20


class CoPE(PerLayer):
    """Adds ``q_i . e[p_ij] / sqrt(d_head)`` to the scores, where ``p_ij`` counts tokens j..i by the gates of query i.

    Gate ``g_ij = sigmoid(q_i . k_j / sqrt(d_head))``; ``p_ij = g_ij + .. + g_ii``, at most ``n_positions - 1``; ``e``
    is interpolated between whole positions. The heads of a layer share its table: ``n_layers n_positions d_head``
    parameters, 0 at the start. No longest sequence.

    Source: Golovneva et al. 2024 (2405.18719), section 4, and its code for the scaling of both products.

    Args:
        n_layers: number of attention layers.
        d_head: width of a head.
        n_positions: rows of ``e``; all counts above share the last one.

    Raises:
        ValueError: ``n_positions`` outside ``[2, 2^20]``.
    """

    sees = "order"

    def __init__(self, n_layers: int, d_head: int, n_positions: int = 64) -> None:
        if not 2 <= n_positions <= MOST_POSITIONS:
            raise ValueError(f"n_positions {n_positions} must be in 2 to {MOST_POSITIONS}")
        super().__init__(CoPELayer(d_head, n_positions) for _ in range(n_layers))


class CoPELayer(PositionScheme):
    """One layer of `CoPE`."""

    def __init__(self, d_head: int, n_positions: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_positions, d_head))

    def content_bias(
        self,
        q: Float[Tensor, "b h t_q d_head"],
        k: Float[Tensor, "b h t_k d_head"],
        features: Tensor | None,
        behind: Int64[Tensor, "*b t_q t_k"],
    ) -> Float[Tensor, "b h t_q t_k"]:
        """Bias (B, H, T_q, T_k); the positions are counted in fp32, because bf16 does not count beyond 256."""
        scale = q.shape[-1] ** 0.5
        gates = ((q @ k.transpose(-1, -2)).float() / scale).sigmoid().masked_fill(behind < 0, 0.0)
        position = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=len(self.weight) - 1)
        at_whole = (q @ self.weight.to(q.dtype).T).float() / scale
        below = position.detach().floor()
        share = position - below
        below = below.long()
        above = (below + 1).clamp(max=len(self.weight) - 1)
        return at_whole.gather(-1, below) * (1 - share) + at_whole.gather(-1, above) * share
