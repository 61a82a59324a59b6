"""Compare one attention layer, forward and backward, with torch's fused kernel between the same projections."""

from functools import partial

import torch
import torch.nn.functional as F
from measure import in_turn, median, seconds_of
from tables import table
from torch import Tensor

from poslab.model import MultiHeadSelfAttention
from poslab.positions import PositionScheme
from poslab.positions.alibi import ALiBi
from poslab.positions.rope import RotaryPositions

REPEATS = 5
D_MODEL, N_HEADS, TOKENS = 64, 4, 4096
LENGTHS = (128, 512, 2048)


def bare(layer: MultiHeadSelfAttention, x: Tensor) -> Tensor:
    n_rows, seq_len, _ = x.shape
    q, k, v = layer.qkv_proj(x).view(n_rows, seq_len, 3, N_HEADS, -1).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return layer.out_proj(mixed.transpose(1, 2).reshape(n_rows, seq_len, D_MODEL))


def ours(layer: MultiHeadSelfAttention, x: Tensor, positions: PositionScheme | None) -> Tensor:
    return layer(x, positions=positions)


def with_weights(layer: MultiHeadSelfAttention, x: Tensor) -> Tensor:
    return layer(x, return_weights=True)[0]


def measure(repeats: int, full: bool) -> str:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    for length in LENGTHS:
        layer = MultiHeadSelfAttention(D_MODEL, N_HEADS, length)
        x = torch.randn(TOKENS // length, length, D_MODEL, requires_grad=True)
        ways = {
            "bare": partial(bare, layer),
            "poslab": partial(ours, layer, positions=None),
            "rope": partial(ours, layer, positions=RotaryPositions(D_MODEL // N_HEADS)),
            "alibi": partial(ours, layer, positions=ALiBi(N_HEADS)),
            "weights": partial(with_weights, layer),
        }
        measures = {}
        for name, way in ways.items():
            measures[f"{name} forward"] = partial(seconds_of, partial(forward, way, x), 3)
            measures[f"{name} both"] = partial(seconds_of, partial(both, way, x), 3)
        found = {name: median(taken) * 1000 for name, taken in in_turn(measures, repeats).items()}
        for name in ways:
            one_way, both_ways = found[f"{name} forward"], found[f"{name} both"]
            rows.append(
                (length, name, one_way, one_way / found["bare forward"], both_ways, both_ways / found["bare both"])
            )
    torch.set_num_threads(threads)
    return "\n\n".join(
        [
            "## Attention",
            f"One layer, D {D_MODEL}, H {N_HEADS}, {TOKENS} tokens in rows of T, one thread; ms. `bare` is "
            "`scaled_dot_product_attention` between the same projections, `weights` returns every head's weights.",
            table(("T", "", "forward", "ratio", "forward and backward", "ratio"), rows),
        ]
    )


def forward(way: partial[Tensor], x: Tensor) -> None:
    with torch.no_grad():
        way(x)


def both(way: partial[Tensor], x: Tensor) -> None:
    way(x).sum().backward()
