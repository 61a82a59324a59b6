"""No position scheme: the model gets information about order only from the causal mask."""

from poslab.positions.base import PositionScheme


class NoPositions(PositionScheme):
    """Adds no vectors, rotates nothing and adds no bias. No parameters."""

    sees = "order"
