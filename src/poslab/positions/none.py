"""No positions at all: order reaches the model only through the causal mask."""

from poslab.positions.base import PositionScheme


class NoPositions(PositionScheme):
    """Adds, rotates and biases nothing. Zero parameters."""
