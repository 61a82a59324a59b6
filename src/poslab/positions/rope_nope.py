"""RoPE in most layers and no position in every n-th one."""

from poslab.positions.base import PerLayer
from poslab.positions.none import NoPositions
from poslab.positions.rope import RotaryPositions


class RopeNoPE(PerLayer):
    """`RotaryPositions`, except in every ``every``-th layer, which has no positions.

    No parameters and no longest sequence.

    Source: Yang et al. 2025 (RNoPE, 2501.18795), section 4.

    Args:
        n_layers: number of attention layers; at least ``every``, so that one of them has no positions.
        d_head: width of a head; even.
        base: as in `RotaryPositions`.
        every: 2 leaves every second layer without positions, 4 every fourth.

    Raises:
        ValueError: odd ``d_head``, ``base <= 1`` or ``every < 2``.
    """

    sees = "distances"

    def __init__(self, n_layers: int, d_head: int, base: float = 10000.0, every: int = 2) -> None:
        if every < 2:
            raise ValueError(f"every {every} must be at least 2; for no positions at all use pos=none")
        rotary = RotaryPositions(d_head, base)
        super().__init__(NoPositions() if (index + 1) % every == 0 else rotary for index in range(n_layers))
        if n_layers < every:
            self.note = (
                f"pos=rope_nope with model.n_layers={n_layers} and pos.every={every} is pos=rope; use more layers"
            )
