"""What each attention head does, by its weights, and what the loss costs without it."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from poslab.evaluation.metrics import loss_sum
from poslab.model import LanguageModel, MultiHeadSelfAttention
from poslab.model.attention import QUERIES_AT_ONCE
from poslab.tasks.base import IGNORED

ROLES = ("previous_token", "first_token", "self", "uniform", "copy")


class RoleSums(NamedTuple):
    """Sums over rows of weights, so that batches add up to exact means; roles in the order of `ROLES`."""

    sums: Float64[Tensor, "roles h"]
    counts: Float64[Tensor, " roles"]


def role_sums(weights: Float[Tensor, "b h t t"], answer_cells: Bool[Tensor, "b t t"]) -> RoleSums:
    """What `mean_roles` needs of one batch; see `head_roles`."""
    batch, _, n_tokens, _ = weights.shape
    cells = answer_cells.to(weights.device)
    entropies, on_answers = [], []
    # By blocks of queries: with a long context the products are as large as the weights themselves.
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
    """The roles (H,) of every head over all these batches together; see `head_roles`."""
    sums, counts = (torch.stack(list(parts)).sum(0) for parts in zip(*batches, strict=True))
    # A role that no row can show is not played; and rounding must not leave the range.
    means = (sums / counts.clamp_min(1)[:, None]).clamp(0.0, 1.0)
    return dict(zip(ROLES, means, strict=True))


def head_roles(
    weights: Float[Tensor, "b h t t"], answer_cells: Bool[Tensor, "b t t"]
) -> dict[str, Float64[Tensor, " h"]]:
    """How far each head plays each role, in [0, 1], over all rows of all sequences.

    - ``previous_token``: mean of ``w[t, t-1]`` over ``t >= 1``, for the first token has none before it;
    - ``first_token``: mean of ``w[t, 0]`` over every ``t``;
    - ``self``: mean of ``w[t, t]`` over every ``t``;
    - ``uniform``: mean over ``t >= 1`` of the row's entropy divided by ``log(t + 1)``, the most it can be; the first
      row has a single weight and nothing to spread;
    - ``copy``: mean weight on the places that hold the token to be named, a row's ``answer_cells`` together, over the
      rows that have any.

    The first row always gives its whole weight to token 0, so every head has ``first_token`` and ``self`` of ``1 / T``
    or more. A role without a row that counts (no answer cell, a sequence of one token) is 0. Where all tokens of a
    sequence are one, whatever a head looks at holds the answer, and ``copy`` is 1.

    Args:
        weights: attention weights (query, key), rows sum to 1, nothing above the diagonal.
        answer_cells: where a key holds the token that the query has to name, as `Task.answer_cells` says.

    Returns:
        each of `ROLES` to one number a head.
    """
    return mean_roles([role_sums(weights, answer_cells)])


@contextmanager
def without_heads(attention: MultiHeadSelfAttention, heads: Collection[int]) -> Iterator[None]:
    """Inside, these heads give nothing: their columns are zero before ``out_proj``, whose bias stays.

    No parameter is touched, and what was put in place is removed also when an error ends it.

    Raises:
        ValueError: a head that the layer does not have.
    """
    wrong = [head for head in heads if not 0 <= head < attention.n_heads]
    if wrong:
        raise ValueError(f"head {wrong[0]} is none of the {attention.n_heads} heads, counted from 0")
    silenced = torch.zeros(attention.n_heads, dtype=torch.bool)
    silenced[list(heads)] = True
    columns = silenced.repeat_interleave(attention.d_head).to(attention.out_proj.weight.device)

    def silence(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        # Not a product: zero times infinity is no zero.
        return inputs[0].masked_fill(columns, 0.0)

    handle = attention.out_proj.register_forward_pre_hook(silence)
    try:
        yield
    finally:
        handle.remove()


def head_ablation(model: LanguageModel, batches: Collection[tuple[Tensor, Tensor]]) -> list[list[float]]:
    """What the loss rises by without each head: the loss with its output removed, minus the loss with all of them.

    Negative where the model is better off without. The model is measured in evaluation mode, and each of its modules is
    left in the mode it came in, also by an error; neither parameters nor the random state change.

    Args:
        model: on the device of the batches.
        batches: tokens and targets, both (B, T).

    Returns:
        nats per token, by layer and head.
    """
    modes = [(module, module.training) for module in model.modules()]
    layers = model.attention_layers()
    model.eval()
    try:
        with torch.no_grad():
            by_batch = [_losses(model, layers, tokens, targets) for tokens, targets in batches]
    finally:
        for module, training in modes:
            module.training = training
    counted = sum(int((targets != IGNORED).sum()) for _, targets in batches)
    whole, *without = (sum(column) / counted for column in zip(*by_batch, strict=True))
    costs = iter(loss - whole for loss in without)
    return [[next(costs) for _ in range(attention.n_heads)] for attention in layers]


def _losses(
    model: LanguageModel, layers: Sequence[MultiHeadSelfAttention], tokens: Tensor, targets: Tensor
) -> list[float]:
    """The loss of one batch as a sum over its tokens: with all heads, and without each, by layer and head."""
    x = model.embeddings(tokens)
    losses = [loss_sum(model.head(model.body(x)), targets)]
    for index, attention in enumerate(layers):
        for head in range(attention.n_heads):
            with without_heads(attention, [head]):
                losses.append(loss_sum(model.head(model.body(x, first=index)), targets))
        # Whatever comes before a layer is the same without one of its heads, and is not made again.
        x = model.layer(index, x)
    return [float(loss) for loss in losses]
