"""Position schemes, one file each; all implement the interface in `base`."""

from poslab.positions.alibi import ALiBi
from poslab.positions.base import PositionScheme
from poslab.positions.fire import FIRE
from poslab.positions.hard_alibi import HardALiBi
from poslab.positions.learned import LearnedPositionalEmbedding
from poslab.positions.none import NoPositions
from poslab.positions.rope import RotaryPositions
from poslab.positions.sinusoidal import SinusoidalPositionalEmbedding
from poslab.positions.t5 import T5Bias

__all__ = [
    "FIRE",
    "ALiBi",
    "HardALiBi",
    "LearnedPositionalEmbedding",
    "NoPositions",
    "PositionScheme",
    "RotaryPositions",
    "SinusoidalPositionalEmbedding",
    "T5Bias",
    "default_scheme",
]


def default_scheme(max_context_length: int, d_model: int) -> PositionScheme:
    """The position scheme of a model that is built without one: a learned table (L, D)."""
    return LearnedPositionalEmbedding(max_context_length, d_model)
