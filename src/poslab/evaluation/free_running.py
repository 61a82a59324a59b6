"""Score a model that reads its own predictions instead of the true tokens."""

from collections.abc import Iterable

import torch
from jaxtyping import Int64
from torch import Tensor

from poslab.model import LanguageModel
from poslab.tasks.base import IGNORED


@torch.no_grad()
def free_running(
    model: LanguageModel, tokens: Int64[Tensor, "b t"], targets: Int64[Tensor, "b t"]
) -> Int64[Tensor, "b t"]:
    """Predict the targets (B, T), where each predicted token replaces the true token at the next position.

    Tokens after an ignored target are read as they are: sources, separators, the queries of a recall task. The next
    token is the most likely one. Each token costs one query over the cached keys.

    Args:
        model: in evaluation mode, on the device of the tokens.
        tokens: the true rows.
        targets: the target at each position; `IGNORED` where the model does not have to predict.

    Returns:
        the predictions; `IGNORED` before the first target of all rows.
    """
    asked = targets != IGNORED
    predictions = torch.full_like(targets, IGNORED)
    if not bool(asked.any()):
        return predictions
    first = int(asked.any(0).int().argmax())
    cache, new = model.new_cache(), tokens[:, : first + 1]
    for place in range(first, tokens.shape[1]):
        predictions[:, place] = model.read(new, cache)[:, -1].argmax(-1)
        following = tokens[:, place + 1 : place + 2]
        new = torch.where(asked[:, place : place + 1], predictions[:, place : place + 1], following)
    return predictions


def free_accuracy(model: LanguageModel, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Share of the targets in all batches, both parts (B, T), that the model predicts right after its own predictions.

    The model is in evaluation mode; batches are moved to its device.
    """
    device = next(model.parameters()).device
    right = counted = 0
    for tokens, targets in batches:
        tokens, targets = tokens.to(device), targets.to(device)
        asked = targets != IGNORED
        right += int(((free_running(model, tokens, targets) == targets) & asked).sum())
        counted += int(asked.sum())
    return right / counted
