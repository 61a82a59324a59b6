"""Attention of all copies by one call: the same numbers and gradients as copy by copy."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap
from torch.profiler import ProfilerActivity, profile

from poslab.training.kernels import FusedAttention

N, B, H, T, D_HEAD = 3, 2, 4, 5, 8


def parts(*shape: int) -> list[Tensor]:
    return [torch.randn(*shape, T, D_HEAD, requires_grad=True) for _ in range(3)]


def causal(*shape: int) -> Tensor:
    mask = torch.randn(*shape, T, T).masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), float("-inf"))
    return mask.requires_grad_()


@pytest.mark.parametrize("mask", ["none", "of all", "of each", "of each, with a batch axis", "of each, for all heads"])
def test_outputs_and_gradients_are_those_of_each_copy_alone(mask: str) -> None:
    q, k, v = parts(N, B, H)
    masks = {
        "none": None,
        "of all": causal(H),
        "of each": causal(N, H),
        "of each, with a batch axis": causal(N, 1, H),
        "of each, for all heads": causal(N),
    }
    given = masks[mask]
    own = 0 if mask.startswith("of each") else None

    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None)

    leaves = [q, k, v, *([] if given is None else [given])]
    with FusedAttention():
        together = vmap(attend, in_dims=(0, 0, 0, own))(q, k, v, given)
    alone = torch.stack(
        [attend(q[n], k[n], v[n], given if own is None or given is None else given[n]) for n in range(N)]
    )
    torch.testing.assert_close(together, alone)
    weights = torch.randn_like(alone)
    for ours, theirs in zip(
        torch.autograd.grad((together * weights).sum(), leaves),
        torch.autograd.grad((alone * weights).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_what_no_copy_has_of_its_own_is_shared() -> None:
    q, k, v = *parts(N, B, H)[:1], *parts(B, H)[:2]
    with FusedAttention():
        together = vmap(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), in_dims=(0, None, None))(q, k, v)
    torch.testing.assert_close(together, torch.stack([F.scaled_dot_product_attention(one, k, v) for one in q]))


def test_it_is_one_call_of_the_fused_kernel() -> None:
    q, k, v = parts(N, B, H)
    with profile(activities=[ProfilerActivity.CPU]) as seen, FusedAttention():
        vmap(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))(q, k, v)
    calls = {event.key: event.count for event in seen.key_averages()}
    assert calls["aten::_scaled_dot_product_flash_attention_for_cpu"] == 1
    assert "aten::_scaled_dot_product_attention_math" not in calls
