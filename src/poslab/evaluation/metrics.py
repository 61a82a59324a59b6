"""Loss, accuracy, exact match and neighbour similarity, as pure functions of tensors."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from poslab.tasks.base import IGNORED


def token_loss(logits: Float[Tensor, "b t v"], targets: Int64[Tensor, "b t"]) -> Float[Tensor, ""]:
    """Mean cross-entropy in nats over the targets that are not ignored, computed in fp32."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED)


def loss_sum(logits: Float[Tensor, "b t v"], targets: Int64[Tensor, "b t"]) -> Float64[Tensor, ""]:
    """Sum of the cross-entropy in nats over the targets that are not ignored, in fp64.

    Sums of several batches add up to a mean that does not depend on the batch sizes.
    """
    losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="none")
    return losses.double().sum()


class Score(NamedTuple):
    """Sums over examples, from which means over several batches and ranks are exact.

    Attributes:
        loss_sum: in nats.
        tokens: number of targets that are not ignored.
        tokens_right: number of those that are predicted right.
        rows: number of rows with at least one such target.
        rows_right: number of rows in which all of them are right.
    """

    loss_sum: Tensor
    tokens: Tensor
    tokens_right: Tensor
    rows: Tensor
    rows_right: Tensor

    def means(self) -> dict[str, float]:
        """Return ``loss`` in nats per token, ``accuracy`` (share of tokens right), ``exact_match`` (of rows right).

        ``accuracy`` is next-token accuracy: each token is predicted from the true tokens before it, not from earlier
        predictions.
        """
        return {
            "loss": float(self.loss_sum / self.tokens),
            "accuracy": float(self.tokens_right / self.tokens),
            "exact_match": float(self.rows_right / self.rows),
        }


def score(logits: Float[Tensor, "b t v"], targets: Int64[Tensor, "b t"]) -> Score:
    """Score one batch; a row is right if all its targets that are not ignored are predicted right."""
    counted = targets != IGNORED
    right = (logits.argmax(-1) == targets) & counted
    rows_counted = counted.any(-1)
    return Score(
        loss_sum(logits, targets),
        counted.sum(),
        right.sum(),
        rows_counted.sum(),
        ((right | ~counted).all(-1) & rows_counted).sum(),
    )


def score_all(model: nn.Module, batches: Iterable[tuple[Int64[Tensor, "_ _"], Int64[Tensor, "_ _"]]]) -> Score:
    """Score a model on batches of tokens and targets, both (B, T), without gradient, on the model's device."""
    device = next(model.parameters()).device
    with torch.no_grad():
        scores = [score(model(tokens.to(device)), targets.to(device)) for tokens, targets in batches]
    return Score(*(torch.stack(parts).sum() for parts in zip(*scores, strict=True)))


def neighbour_cosine_matrix(table: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """Cosine similarity of every pair of rows, in fp32; the similarity to a zero row is 0, not NaN."""
    rows = F.normalize(table.detach().float(), dim=-1)
    return rows @ rows.T


def neighbour_cosine_curve(table: Float[Tensor, "n d"], max_offset: int = 8) -> list[float]:
    """Mean cosine similarity of rows ``p`` and ``p + k`` for ``k = 1 .. max_offset``, in fp32.

    For the sinusoidal table entry k is ``(2/D) * sum_i cos(k / base^(2i/D))``, the same at every position.

    Raises:
        ValueError: ``table`` is not 2-D, or ``max_offset`` is outside ``[1, rows - 1]``; names the numbers.
    """
    if table.dim() != 2:
        raise ValueError(f"table has shape {tuple(table.shape)}, but it must be (n, d), one row per position")
    n_rows = table.shape[0]
    if not 1 <= max_offset <= n_rows - 1:
        raise ValueError(f"max_offset {max_offset} is outside [1, {n_rows - 1}] for a table of {n_rows} rows")
    similarity = neighbour_cosine_matrix(table)
    return [float(torch.diagonal(similarity, offset=k).mean()) for k in range(1, max_offset + 1)]
