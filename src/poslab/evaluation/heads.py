"""Measure each attention head: its roles, from its attention weights, and the loss without what it computes."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor, nn

from poslab.evaluation.metrics import loss_sum
from poslab.model import LanguageModel, MultiHeadSelfAttention
from poslab.model.attention import QUERIES_AT_ONCE
from poslab.tasks.base import IGNORED

ROLES = ("previous_token", "first_token", "self", "uniform", "copy")


class RoleSums(NamedTuple):
    """Sums over the rows of attention weights, from which means over several batches are exact.

    Attributes:
        sums: per role, in the order of `ROLES`, and head.
        counts: number of rows that count for each role.
    """

    sums: Float64[Tensor, "roles h"]
    counts: Float64[Tensor, " roles"]


def role_sums(weights: Float[Tensor, "b h t t"], answer_cells: Bool[Tensor, "b t t"]) -> RoleSums:
    """Sum the roles of each head over one batch, for `mean_roles`; arguments as in `head_roles`."""
    batch, _, n_tokens, _ = weights.shape
    cells = answer_cells.to(weights.device)
    entropies, on_answers = [], []
    # In blocks of queries: the products need as much memory as the weights.
    for rows, marked in zip(weights.split(QUERIES_AT_ONCE, dim=2), cells.split(QUERIES_AT_ONCE, dim=1), strict=True):
        entropies.append(torch.special.entr(rows).sum(-1))
        on_answers.append((rows * marked[:, None]).sum(-1))
    most = torch.arange(2, n_tokens + 1, device=weights.device, dtype=torch.float64).log()
    parts = (
        weights.diagonal(offset=-1, dim1=-2, dim2=-1),
        weights[..., 0],
        weights.diagonal(dim1=-2, dim2=-1),
        torch.cat(entropies, dim=-1)[..., 1:].double() / most,
        torch.cat(on_answers, dim=-1),
    )
    sums = torch.stack([part.double().sum(dim=(0, 2)) for part in parts])
    later, every = batch * (n_tokens - 1), batch * n_tokens
    counts = [later, every, every, later, int(cells.any(-1).sum())]
    return RoleSums(sums.cpu(), torch.tensor(counts, dtype=torch.float64))


def mean_roles(batches: Iterable[RoleSums]) -> dict[str, Float64[Tensor, " h"]]:
    """The roles (H,) of every head over all batches together, as defined in `head_roles`."""
    sums, counts = (torch.stack(list(parts)).sum(0) for parts in zip(*batches, strict=True))
    # A role without rows is 0. The clamp removes rounding errors outside [0, 1].
    means = (sums / counts.clamp_min(1)[:, None]).clamp(0.0, 1.0)
    return dict(zip(ROLES, means, strict=True))


def head_roles(
    weights: Float[Tensor, "b h t t"], answer_cells: Bool[Tensor, "b t t"]
) -> dict[str, Float64[Tensor, " h"]]:
    """Measure how much each head plays each role, in [0, 1], as means over all rows of all sequences.

    - ``previous_token``: mean of ``w[t, t-1]`` over ``t >= 1``;
    - ``first_token``: mean of ``w[t, 0]`` over all ``t``;
    - ``self``: mean of ``w[t, t]`` over all ``t``;
    - ``uniform``: mean over ``t >= 1`` of the row's entropy divided by its maximum, ``log(t + 1)``;
    - ``copy``: mean over the rows with answer cells of the sum of the weights in these cells.

    The only weight of the first row is ``w[0, 0] = 1``, so ``first_token`` and ``self`` are at least ``1 / T``. A role
    without rows (no answer cells, sequences of one token) is 0. If all tokens of a sequence are equal, every cell holds
    the answer and ``copy`` is 1.

    Args:
        weights: attention weights (query, key); each row sums to 1 and is 0 above the diagonal.
        answer_cells: True where the key's token is the target of the query, as in `Task.answer_cells`.

    Returns:
        one number per head (H,) for each of `ROLES`.
    """
    return mean_roles([role_sums(weights, answer_cells)])


@contextmanager
def without_heads(
    attention: MultiHeadSelfAttention, heads: Collection[int], instead: Float[Tensor, " d"] | None = None
) -> Iterator[None]:
    """Ablate heads inside the context: their output is set to a constant before ``out_proj``; its bias is still added.

    Parameters are not changed. A forward hook does the masking and is removed at the end, also after an exception.

    Args:
        attention: the layer.
        heads: the heads to ablate.
        instead: vector (D,) that replaces the output of all heads, of which the columns of ``heads`` are used; None
            for 0.

    Raises:
        ValueError: the layer does not have such a head; names it and the number of heads.
    """
    wrong = [head for head in heads if not 0 <= head < attention.n_heads]
    if wrong:
        raise ValueError(f"head {wrong[0]} does not exist; the layer has {attention.n_heads} heads, counted from 0")
    ablated = torch.zeros(attention.n_heads, dtype=torch.bool)
    ablated[list(heads)] = True
    columns = ablated.repeat_interleave(attention.d_head).to(attention.out_proj.weight.device)

    def mask_columns(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        # No product with 0 or 1, because 0 times infinity is NaN.
        if instead is None:
            return inputs[0].masked_fill(columns, 0.0)
        return torch.where(columns, instead.to(inputs[0].dtype), inputs[0])

    handle = attention.out_proj.register_forward_pre_hook(mask_columns)
    try:
        yield
    finally:
        handle.remove()


def head_ablation(
    model: LanguageModel, batches: Collection[tuple[Tensor, Tensor]], by_mean: bool = False
) -> list[list[float]]:
    """Loss without what each head computes minus the loss with all heads; negative if the head increases the loss.

    By default the output of the head is replaced by 0. This also removes what is the same at every position, and a
    model may rely on such a constant without using the head: a bias can cancel it. ``by_mean`` replaces the output by
    its mean over all positions of all rows instead, and so removes only what depends on the tokens.

    The model is measured in evaluation mode. Afterwards every module is in its former mode again, also after an
    exception; parameters and the random state do not change.

    Args:
        model: on the device of the batches.
        batches: tokens and targets, both (B, T).
        by_mean: replace by the mean instead of by 0.

    Returns:
        the difference in nats per token, by layer and head.
    """
    modes = [(module, module.training) for module in model.modules()]
    layers = model.attention_layers()
    model.eval()
    try:
        with torch.no_grad():
            means = _mean_outputs(model, layers, [tokens for tokens, _ in batches]) if by_mean else [None] * len(layers)
            by_batch = [_losses(model, layers, means, tokens, targets) for tokens, targets in batches]
    finally:
        for module, training in modes:
            module.training = training
    counted = sum(int((targets != IGNORED).sum()) for _, targets in batches)
    whole, *without = (sum(column) / counted for column in zip(*by_batch, strict=True))
    costs = iter(loss - whole for loss in without)
    return [[next(costs) for _ in range(attention.n_heads)] for attention in layers]


def _mean_outputs(
    model: LanguageModel, layers: Sequence[MultiHeadSelfAttention], batches: Sequence[Tensor]
) -> list[Float[Tensor, " d"]]:
    """Mean output (D,) of the heads of each layer, over all positions of all rows."""
    sums: dict[nn.Module, Tensor] = {}

    def add(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        sums[module] = sums.get(module, 0) + inputs[0].double().sum(dim=(0, 1))

    handles = [attention.out_proj.register_forward_pre_hook(add) for attention in layers]
    try:
        for tokens in batches:
            model.body(model.embeddings(tokens))
    finally:
        for handle in handles:
            handle.remove()
    n_positions = sum(tokens.numel() for tokens in batches)
    return [(sums[attention.out_proj] / n_positions).float() for attention in layers]


def _losses(
    model: LanguageModel,
    layers: Sequence[MultiHeadSelfAttention],
    means: Sequence[Tensor | None],
    tokens: Tensor,
    targets: Tensor,
) -> list[float]:
    """Summed loss of one batch, in nats: first with all heads, then without each head, by layer and head."""
    x = model.embeddings(tokens)
    losses = [loss_sum(model.head(model.body(x)), targets)]
    for index, attention in enumerate(layers):
        for head in range(attention.n_heads):
            with without_heads(attention, [head], means[index]):
                losses.append(loss_sum(model.head(model.body(x, first=index)), targets))
        # Ablating a head does not change the layers before it, so their output is computed once.
        x = model.layer(index, x)
    return [float(loss) for loss in losses]
