"""Multi-head causal self-attention, with the weights of every head on request."""

from typing import Literal, overload

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from poslab.model.cache import LayerCache
from poslab.positions import PositionScheme


def masked_softmax(
    scores: Float[Tensor, "*batch q k"], visible: Bool[Tensor, "q k"] | Bool[Tensor, "*batch q k"]
) -> Float[Tensor, "*batch q k"]:
    """Softmax over the last axis in fp32, over the visible cells only.

    Masked cells come out as exactly 0, and so does every cell of a row that sees nothing: no NaN in any dtype.
    """
    scores = scores.float()
    # The smallest finite number and not -inf: a row of -inf alone would be 0 / 0.
    weights = torch.softmax(scores.masked_fill(~visible, torch.finfo(torch.float32).min), dim=-1)
    return weights.masked_fill(~visible, 0.0)


MOST_CONTEXT = 32_768
"""The causal mask has a byte for each pair of positions: a gigabyte at this length."""
QUERIES_AT_ONCE = 64
"""Rows of weights that are made together where no gradient is asked for."""


def check_context(max_context_length: int) -> None:
    """Refuse a context without positions, or one whose causal mask alone would take gigabytes.

    Raises:
        ValueError: ``max_context_length`` outside ``[1, MOST_CONTEXT]``.
    """
    if not 1 <= max_context_length <= MOST_CONTEXT:
        raise ValueError(f"max_context_length {max_context_length} must be at least 1 and at most {MOST_CONTEXT}")


def visible_cells(max_context_length: int) -> Bool[Tensor, "l l"]:
    """True where a query (row) may look at a key (column): at itself and what came before."""
    return torch.ones(max_context_length, max_context_length, dtype=torch.bool).tril()


class MultiHeadSelfAttention(nn.Module):
    """Scaled dot-product attention in H heads, each query seeing itself and what came before.

    Its only parameters are the fused ``qkv_proj`` (D -> 3D) and ``out_proj`` (D -> D): ``4 D^2 + 4 D`` with biases. A
    position scheme is handed to `forward`, because the layers of a model share one.

    Source: Vaswani et al. 2017 (1706.03762), section 3.2.

    Args:
        d_model: D, the width of input and output.
        n_heads: H; each head works on ``d_head = D // H`` columns.
        max_context_length: L, the longest sequence.
        bias: whether the two projections add a bias.
        dropout: probability with which a weight is dropped while training.

    Raises:
        ValueError: ``H < 1``, ``D % H != 0``, ``L < 1`` or a dropout outside ``[0, 1)``; names the numbers.
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
        # Not persistent: a longer context is no size mismatch.
        self.register_buffer("causal_mask", visible_cells(max_context_length), persistent=False)

    def extend(self, max_context_length: int) -> None:
        """Take sequences of up to ``max_context_length`` tokens; shorter ones come out as before."""
        check_context(max_context_length)
        if max_context_length > self.max_context_length:
            self.max_context_length = max_context_length
            self.causal_mask = visible_cells(max_context_length).to(self.causal_mask.device)

    def _split_heads(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b h t d_head"]:
        """(B, T, D) -> (B, H, T, d_head): head h gets columns ``h * d_head .. (h + 1) * d_head - 1``."""
        return x.unflatten(-1, (self.n_heads, self.d_head)).transpose(1, 2)

    def _merge_heads(self, x: Float[Tensor, "b h t d_head"]) -> Float[Tensor, "b t d"]:
        """(B, H, T, d_head) -> (B, T, D): undoes `_split_heads`."""
        return x.transpose(1, 2).flatten(2)

    @overload
    def forward(
        self,
        x: Float[Tensor, "b t d"],
        return_weights: Literal[False] = False,
        positions: PositionScheme | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "b t d"]: ...
    @overload
    def forward(
        self,
        x: Float[Tensor, "b t d"],
        return_weights: Literal[True],
        positions: PositionScheme | None = None,
        cache: LayerCache | None = None,
    ) -> tuple[Float[Tensor, "b t d"], Float[Tensor, "b h t t_k"]]: ...
    def forward(
        self,
        x: Float[Tensor, "b t d"],
        return_weights: bool = False,
        positions: PositionScheme | None = None,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "b t d"] | tuple[Float[Tensor, "b t d"], Float[Tensor, "b h t t_k"]]:
        """Attend over ``x`` (B, T, D).

        Args:
            x: input vectors.
            return_weights: also return the weights (B, H, T, T) of every head, (query, key), in fp32, before dropout.
                Without them the fused kernel runs; both ways give the same output within float tolerance.
            positions: the scheme that rotates queries and keys and biases the scores; None for neither.
            cache: what this layer has read so far: ``x`` comes after it, sees it and is added to it. The weights are
                then (B, H, T, T_k) for all T_k tokens. For evaluation only: it carries no gradient.

        Raises:
            ValueError: ``x`` is not (B, T, D) with this D, or the sequence is longer than L; names the numbers.
        """
        start = 0 if cache is None else cache.length
        self._check(x, start)
        seq_len = x.shape[1]
        q, k, v = (self._split_heads(part) for part in self.qkv_proj(x).chunk(3, dim=-1))
        bias = None
        if positions is not None:
            # A scheme may compute in fp32; the kernels want one dtype.
            q, k = positions.rotate(q, start).to(v.dtype), positions.rotate(k, start).to(v.dtype)
            bias = positions.bias(seq_len, start + seq_len)
        if cache is not None:
            k, v = cache.append(k, v)
        if return_weights:
            mixed, weights = self._mix_in_the_open(q, k, v, bias)
            return self.out_proj(self._merge_heads(mixed)), weights
        return self.out_proj(self._merge_heads(self._mix_fused(q, k, v, bias)))

    def _check(self, x: Tensor, start: int) -> None:
        if x.dim() != 3 or x.shape[-1] != self.d_model:
            raise ValueError(f"input has shape {tuple(x.shape)}, but attention needs (B, T, {self.d_model})")
        if start + x.shape[1] > self.max_context_length:
            raise ValueError(
                f"sequence of {start + x.shape[1]} tokens is longer than max_context_length {self.max_context_length}; "
                "shorten it or build the model with a longer context"
            )

    def _visible(self, n_queries: int, n_keys: int) -> Bool[Tensor, "t_q t_k"]:
        """The causal mask's rows of the last ``n_queries`` of ``n_keys`` tokens."""
        return self.causal_mask[n_keys - n_queries : n_keys, :n_keys]

    def _mix_in_the_open(
        self,
        q: Float[Tensor, "b h t d_head"],
        k: Float[Tensor, "b h t_k d_head"],
        v: Float[Tensor, "b h t_k d_head"],
        bias: Float[Tensor, "h t t_k"] | None,
    ) -> tuple[Float[Tensor, "b h t d_head"], Float[Tensor, "b h t t_k"]]:
        """The same sum as the fused kernel, step by step, so that the weights can be seen."""
        n_queries, n_keys = q.shape[-2], k.shape[-2]
        visible = self._visible(n_queries, n_keys)
        if torch.is_grad_enabled() or n_queries <= QUERIES_AT_ONCE:
            return self._mix_queries(q, k, v, bias, visible)
        # Scores, masked scores and weights of a long context would be three arrays of (B, H, T, T) at once.
        mixed = torch.empty_like(q)
        weights = torch.empty(*q.shape[:-1], n_keys, device=q.device)
        for start in range(0, n_queries, QUERIES_AT_ONCE):
            rows = slice(start, start + QUERIES_AT_ONCE)
            mixed[:, :, rows], weights[:, :, rows] = self._mix_queries(
                q[:, :, rows], k, v, None if bias is None else bias[:, rows], visible[rows]
            )
        return mixed, weights

    def _mix_queries(
        self,
        q: Float[Tensor, "b h t_q d_head"],
        k: Float[Tensor, "b h t_k d_head"],
        v: Float[Tensor, "b h t_k d_head"],
        bias: Float[Tensor, "h t_q t_k"] | None,
        visible: Bool[Tensor, "t_q t_k"],
    ) -> tuple[Float[Tensor, "b h t_q d_head"], Float[Tensor, "b h t_q t_k"]]:
        scores = (q @ k.transpose(-2, -1)).float() / self.d_head**0.5
        if bias is not None:
            scores = scores + bias
        weights = masked_softmax(scores, visible)
        kept = F.dropout(weights, self.dropout, self.training) if self.dropout else weights
        return kept.to(v.dtype) @ v, weights

    def _mix_fused(
        self,
        q: Float[Tensor, "b h t d_head"],
        k: Float[Tensor, "b h t_k d_head"],
        v: Float[Tensor, "b h t_k d_head"],
        bias: Float[Tensor, "h t t_k"] | None,
    ) -> Float[Tensor, "b h t d_head"]:
        dropout = self.dropout if self.training else 0.0
        n_queries, n_keys = q.shape[-2], k.shape[-2]
        # The kernel's own causal mask aligns the first query with the first key; a last query alone sees everything.
        # Constants and no comparison as `is_causal`: where lengths vary, the compiler takes nothing else.
        if bias is None and n_queries == n_keys:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        if bias is None and n_queries == 1:
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        mask = self._visible(n_queries, n_keys)
        if bias is not None:
            # Every query sees itself, so no row is all -inf.
            # With an axis for the batch: without one the kernel is taken apart, seven times as slow.
            mask = bias.float().masked_fill(~mask, float("-inf")).to(q.dtype)[None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, n_heads={self.n_heads}, max_context_length={self.max_context_length}"
