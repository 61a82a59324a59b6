"""How large the vectors are that a model starts from."""

import math

import torch
from torch import Tensor

from poslab.model.language_model import LanguageModel


@torch.no_grad()
def start_scales(model: LanguageModel, seq_len: int) -> dict[str, float | None]:
    """Root mean squares of the position vectors and of the token vectors, and their ratio.

    Position vectors that are large beside the token vectors are learned from sooner, whatever the scheme, so a
    comparison of schemes has to know them.

    Args:
        model: as it was built.
        seq_len: T, the longest sequence of the training.

    Returns:
        ``position_rms`` of the vectors (T, D) that are added to the token vectors of such a sequence in evaluation
        mode, None for a scheme that adds none; ``token_rms`` of the whole token table (V, D); and
        ``position_over_token``, None without position vectors or with token vectors of zero.
    """
    scheme, training = model.positions, model.positions.training
    # In training mode the positions may be random, and drawing them would change the run.
    vectors = scheme.eval()(seq_len)
    scheme.train(training)
    positions = None if vectors is None else _rms(vectors)
    tokens = _rms(model.token_embedding.embedding.weight)
    ratio = positions / tokens if positions is not None and tokens else None
    return {"position_rms": positions, "token_rms": tokens, "position_over_token": ratio}


def _rms(values: Tensor) -> float | None:
    """None where it is not finite, which JSON cannot hold."""
    found = float(values.double().square().mean().sqrt())
    return found if math.isfinite(found) else None
