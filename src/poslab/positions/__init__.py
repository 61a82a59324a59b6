"""Position schemes: one file each, all behind the interface in `base`."""

from poslab.positions.base import PositionScheme
from poslab.positions.learned import LearnedPositionalEmbedding
from poslab.positions.none import NoPositions
from poslab.positions.sinusoidal import SinusoidalPositionalEmbedding

__all__ = [
    "LearnedPositionalEmbedding",
    "NoPositions",
    "PositionScheme",
    "SinusoidalPositionalEmbedding",
    "lesson_scheme",
]


def lesson_scheme(max_context_length: int, d_model: int) -> PositionScheme:
    """The scheme of the lesson (a learned table), for a model that is built without naming one."""
    return LearnedPositionalEmbedding(max_context_length, d_model)
