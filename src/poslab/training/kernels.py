"""Attention's fused kernel for all copies of a bundle at once.

Vmap knows no rule for the kernels that are fast on a CPU and would take attention apart: for small models that is half
of a step. But attention has no parameters, so the copies are just more sequences of the batch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class FusedAttention(TorchFunctionMode):
    """Inside, ``scaled_dot_product_attention`` under a vmap is one call for all copies."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.scaled_dot_product_attention:
            return _attend(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    # Every copy would have to drop what it drops alone; a bundle with dropout is refused.
    assert dropout_p == 0.0
    mixed: Tensor = _OverCopies.apply(q, k, v, attn_mask, is_causal, scale)
    return mixed


class _OverCopies(torch.autograd.Function):
    """A function for the sake of its vmap, which is what is called; autograd sees the kernel itself inside."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Nothing is kept: there is no backward but the kernel's own."""

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Sequence[int | None],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        scale: float | None,
    ) -> tuple[Tensor, int]:
        n = info.batch_size
        # (N, B, H, T, d_head): what no copy has of its own is the same for all.
        q, k, v = (
            part.expand(n, *part.shape) if at is None else part.movedim(at, 0)
            for part, at in zip((q, k, v), in_dims, strict=False)
        )
        n_rows = q.shape[1]
        if mask is not None and in_dims[3] is not None:
            # (N, 1, H, T, T), or without the axes for batch and heads -> one mask for each sequence of each copy.
            mask = mask.movedim(in_dims[3], 0)
            mask = mask.reshape(n, *(1,) * (5 - mask.dim()), *mask.shape[1:])
            mask = mask.expand(n, n_rows, *mask.shape[2:]).flatten(0, 1)
        mixed = F.scaled_dot_product_attention(
            q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), attn_mask=mask, is_causal=is_causal, scale=scale
        )
        return mixed.unflatten(0, (n, n_rows)), 0
