"""poslab: how positions, width and attention heads decide what a small transformer learns.

The public names are loaded on first use, so that ``import poslab`` (and with it the command line's ``--help``) does not
import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from poslab.evaluation.metrics import neighbour_cosine_curve
    from poslab.model import (
        EmbeddingComposer,
        MultiHeadSelfAttention,
        TinyAttentionLM,
        TokenEmbedding,
        count_parameters,
    )
    from poslab.positions import LearnedPositionalEmbedding, PositionScheme, SinusoidalPositionalEmbedding

_HOMES = ("poslab.positions", "poslab.model", "poslab.evaluation.metrics")

__all__ = [
    "EmbeddingComposer",
    "LearnedPositionalEmbedding",
    "MultiHeadSelfAttention",
    "PositionScheme",
    "SinusoidalPositionalEmbedding",
    "TinyAttentionLM",
    "TokenEmbedding",
    "count_parameters",
    "neighbour_cosine_curve",
]


def __getattr__(name: str) -> Any:
    for home in _HOMES if name in __all__ else ():
        if hasattr(module := import_module(home), name):
            return getattr(module, name)
    raise AttributeError(f"module 'poslab' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
