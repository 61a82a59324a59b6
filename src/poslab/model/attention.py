"""Multi-head causal self-attention that can also return the attention weights of every head."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from poslab.model.cache import LayerCache
from poslab.positions import PositionScheme
from poslab.positions.base import Placed, distances


def masked_softmax(
    scores: Float[Tensor, "*batch q k"], visible: Bool[Tensor, "q k"] | Bool[Tensor, "*batch q k"]
) -> Float[Tensor, "*batch q k"]:
    """Softmax over the last axis in fp32, over the visible cells only.

    Masked cells are exactly 0. A row without any visible cell is 0 everywhere instead of NaN, in any dtype.
    """
    scores = scores.float()
    # The smallest finite number instead of -inf: a row that is all -inf would give 0 / 0 = NaN.
    weights = torch.softmax(scores.masked_fill(~visible, torch.finfo(torch.float32).min), dim=-1)
    return weights.masked_fill(~visible, 0.0)


def _bias(
    positions: PositionScheme,
    q: Float[Tensor, "b h t d_rotated"],
    k: Float[Tensor, "b h t_k d_rotated"],
    features: Float[Tensor, "b h t_k f"] | None,
    placed: Placed | None,
) -> Float[Tensor, "*b h t t_k"] | None:
    """The whole bias of a scheme, of positions and content; None if it has neither."""
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    bias = positions.bias(n_queries, n_keys) if placed is None else positions.bias_at(placed)
    # Most schemes do not depend on the content and should not pay for the distances.
    if type(positions).content_bias is PositionScheme.content_bias:
        return bias
    behind = distances(n_queries, n_keys, q.device) if placed is None else placed.distances()
    of_content = positions.content_bias(q, k, features, behind)
    return of_content if bias is None else bias if of_content is None else bias + of_content


MOST_CONTEXT = 32_768
"""Longest context: the causal mask has one byte per pair of positions, so 1 GiB at this length."""
QUERIES_AT_ONCE = 64
"""Query rows whose weights are computed together when no gradient is needed."""


def check_context(max_context_length: int) -> None:
    """Raise unless the context has at least one position and its causal mask fits into 1 GiB.

    Raises:
        ValueError: ``max_context_length`` is outside ``[1, MOST_CONTEXT]``.
    """
    if not 1 <= max_context_length <= MOST_CONTEXT:
        raise ValueError(f"max_context_length {max_context_length} must be at least 1 and at most {MOST_CONTEXT}")


def visible_cells(max_context_length: int) -> Bool[Tensor, "l l"]:
    """Causal mask (L, L): True where a query (row) may attend to a key (column), its own position or an earlier one."""
    return torch.ones(max_context_length, max_context_length, dtype=torch.bool).tril()


class MultiHeadSelfAttention(nn.Module):
    """Causal scaled dot-product attention in H heads: each query attends to its own position and earlier ones.

    Its only parameters are the fused ``qkv_proj`` (D -> 3D) and ``out_proj`` (D -> D): ``4 D^2 + 4 D`` with biases. The
    position scheme is an argument of `forward`, because all layers of a model share one.

    Source: Vaswani et al. 2017 (1706.03762), section 3.2.

    Args:
        d_model: D, the width of input and output.
        n_heads: H; each head works on ``d_head = D // H`` columns.
        max_context_length: L, the longest sequence.
        bias: whether the two projections have a bias.
        dropout: probability of dropping an attention weight during training.

    Raises:
        ValueError: ``H < 1``, ``D % H != 0``, L outside ``[1, MOST_CONTEXT]`` or dropout outside ``[0, 1)``; names the
            numbers.
    """

    causal_mask: Bool[Tensor, "l l"]

    def __init__(
        self, d_model: int, n_heads: int, max_context_length: int, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if n_heads < 1 or d_model < 1 or d_model % n_heads:
            raise ValueError(
                f"d_model {d_model} cannot be split into n_heads {n_heads} equal heads; "
                "choose n_heads >= 1 that divides d_model"
            )
        check_context(max_context_length)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout {dropout} must be in [0, 1)")
        self.d_model = d_model
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.max_context_length = max_context_length
        self.dropout = dropout
        self.qkv_proj = nn.Linear(d_model, 3 * d_model, bias=bias)
        self.out_proj = nn.Linear(d_model, d_model, bias=bias)
        # Not persistent, so that checkpoints load into a model with a longer context.
        self.register_buffer("causal_mask", visible_cells(max_context_length), persistent=False)

    def extend(self, max_context_length: int) -> None:
        """Accept sequences of up to ``max_context_length`` tokens; outputs for shorter ones do not change."""
        check_context(max_context_length)
        if max_context_length > self.max_context_length:
            self.max_context_length = max_context_length
            self.causal_mask = visible_cells(max_context_length).to(self.causal_mask.device)

    def _split_heads(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b h t d_head"]:
        """Reshape (B, T, D) to (B, H, T, d_head): head h gets columns ``h * d_head .. (h + 1) * d_head - 1``."""
        return x.unflatten(-1, (self.n_heads, self.d_head)).transpose(1, 2)

    def _merge_heads(self, x: Float[Tensor, "b h t d_head"]) -> Float[Tensor, "b t d"]:
        """Reshape (B, H, T, d_head) to (B, T, D): the inverse of `_split_heads`."""
        return x.transpose(1, 2).flatten(2)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        return_weights: bool = False,
        positions: PositionScheme | None = None,
        cache: LayerCache | None = None,
        placed: Placed | None = None,
    ) -> Float[Tensor, "b t d"] | tuple[Float[Tensor, "b t d"], Float[Tensor, "b h t t_k"]]:
        """Attend over ``x`` (B, T, D); return the output (B, T, D).

        Args:
            x: input vectors.
            return_weights: also return the attention weights (B, H, T, T) of every head, (query, key), in fp32, before
                dropout. If False, the fused kernel runs; both give the same output within float tolerance.
            positions: the scheme that rotates queries and keys and biases the scores; None for neither.
            cache: keys and values of the tokens before ``x``; those of ``x`` are appended to it. The weights are then
                (B, H, T, T_k) for all T_k tokens. For evaluation only: the cache carries no gradient.
            placed: positions of the tokens of each row, not together with a cache; None for 0, 1, 2, ..

        Raises:
            ValueError: ``x`` is not (B, T, D) with this D, or the sequence is longer than L; names the numbers.
        """
        start = 0 if cache is None else cache.length
        self._check(x, start)
        q, k, v = (self._split_heads(part) for part in self.qkv_proj(x).chunk(3, dim=-1))
        bias = features = None
        if positions is not None:
            if placed is None:
                q, k = positions.rotate(q, start), positions.rotate_keys(k, start)
            else:
                q, k = positions.rotate_at(q, placed), positions.rotate_keys_at(k, placed)
            # A scheme may compute in fp32, but the kernels need one dtype.
            q, k, features = q.to(v.dtype), k.to(v.dtype), positions.features(x)
        if cache is not None:
            k, v, features = cache.append(k, v, features)
        if positions is not None:
            bias = _bias(positions, q, k, features, placed)
        if return_weights:
            mixed, weights = self._attend_with_weights(q, k, v, bias)
            return self.out_proj(self._merge_heads(mixed)), weights
        return self.out_proj(self._merge_heads(self._attend_fused(q, k, v, bias)))

    def _check(self, x: Tensor, start: int) -> None:
        if x.dim() != 3 or x.shape[-1] != self.d_model:
            raise ValueError(f"input has shape {tuple(x.shape)}, but attention needs (B, T, {self.d_model})")
        if start + x.shape[1] > self.max_context_length:
            raise ValueError(
                f"sequence of {start + x.shape[1]} tokens is longer than max_context_length {self.max_context_length}; "
                "shorten it or build the model with a longer context"
            )

    def _visible(self, n_queries: int, n_keys: int) -> Bool[Tensor, "t_q t_k"]:
        """Rows of the causal mask for the last ``n_queries`` of ``n_keys`` tokens."""
        return self.causal_mask[n_keys - n_queries : n_keys, :n_keys]

    def _attend_with_weights(
        self,
        q: Float[Tensor, "b h t d_rotated"],
        k: Float[Tensor, "b h t_k d_rotated"],
        v: Float[Tensor, "b h t_k d_head"],
        bias: Float[Tensor, "*b h t t_k"] | None,
    ) -> tuple[Float[Tensor, "b h t d_head"], Float[Tensor, "b h t t_k"]]:
        """Compute the output of the fused kernel in single steps, and return the weights too."""
        n_queries, n_keys = q.shape[-2], k.shape[-2]
        visible = self._visible(n_queries, n_keys)
        if torch.is_grad_enabled() or n_queries <= QUERIES_AT_ONCE:
            return self._attend_queries(q, k, v, bias, visible)
        # In blocks of queries: all at once would need three arrays (B, H, T, T): scores, masked scores and weights.
        mixed = q.new_empty(*q.shape[:-1], v.shape[-1])
        weights = torch.empty(*q.shape[:-1], n_keys, device=q.device)
        for start in range(0, n_queries, QUERIES_AT_ONCE):
            rows = slice(start, start + QUERIES_AT_ONCE)
            mixed[:, :, rows], weights[:, :, rows] = self._attend_queries(
                q[:, :, rows], k, v, None if bias is None else bias[..., rows, :], visible[rows]
            )
        return mixed, weights

    def _attend_queries(
        self,
        q: Float[Tensor, "b h t_q d_rotated"],
        k: Float[Tensor, "b h t_k d_rotated"],
        v: Float[Tensor, "b h t_k d_head"],
        bias: Float[Tensor, "*b h t_q t_k"] | None,
        visible: Bool[Tensor, "t_q t_k"],
    ) -> tuple[Float[Tensor, "b h t_q d_head"], Float[Tensor, "b h t_q t_k"]]:
        scores = (q @ k.transpose(-2, -1)).float() / self.d_head**0.5
        if bias is not None:
            scores = scores + bias
        weights = masked_softmax(scores, visible)
        kept = F.dropout(weights, self.dropout, self.training) if self.dropout else weights
        return kept.to(v.dtype) @ v, weights

    def _attend_fused(
        self,
        q: Float[Tensor, "b h t d_rotated"],
        k: Float[Tensor, "b h t_k d_rotated"],
        v: Float[Tensor, "b h t_k d_head"],
        bias: Float[Tensor, "*b h t t_k"] | None,
    ) -> Float[Tensor, "b h t d_head"]:
        dropout = self.dropout if self.training else 0.0
        # Said, because a scheme may make queries wider than d_head.
        scale = 1 / math.sqrt(self.d_head)
        n_queries, n_keys = q.shape[-2], k.shape[-2]
        # The kernel's causal mask aligns the first query with the first key, so it fits only if there are as many
        # queries as keys. A single last query attends to all keys and needs no mask.
        # `is_causal` is a constant in each branch: torch.compile rejects a comparison here if lengths vary.
        if bias is None and n_queries == n_keys:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout, scale=scale)
        if bias is None and n_queries == 1:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale)
        mask = self._visible(n_queries, n_keys)
        if bias is not None:
            # Every query attends to itself, so no row is all -inf.
            # With a batch axis: torch replaces the fused kernel by single operations if the mask has three axes.
            mask = bias.float().masked_fill(~mask, float("-inf")).to(q.dtype)
            mask = mask if mask.dim() == 4 else mask[None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, n_heads={self.n_heads}, max_context_length={self.max_context_length}"
