"""Rotary positions (RoPE): queries and keys are rotated by an angle proportional to their position."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from poslab.positions.base import Placed, PositionScheme

FASTEST, SLOWEST = 32.0, 1.0
"""YaRN's beta and alpha: pairs with more turns than the first over the trained length keep their speed, pairs with
fewer than the second are slowed down by the whole factor."""


def _interpolated(frequencies: Tensor, base: float, factor: float, trained_length: int) -> Tensor:
    """Chen et al. 2023 (2306.15595): all positions are divided by the factor."""
    return frequencies / factor


def _ntk_aware(frequencies: Tensor, base: float, factor: float, trained_length: int) -> Tensor:
    """The base grows so that the slowest pair is slowed down by the factor and the fastest not at all.

    Source: Peng et al. 2023 (2309.00071), section 3.1: ``base * factor^(d / (d - 2))``.
    """
    d = 2 * len(frequencies)
    steps = torch.arange(0, d, 2, device=frequencies.device, dtype=torch.float32)
    return (base * factor ** (d / (d - 2))) ** (-steps / d)


def _yarn(frequencies: Tensor, base: float, factor: float, trained_length: int) -> Tensor:
    """Peng et al. 2023 (2309.00071), section 3.2, as in the authors' code.

    The paper mixes by the number of turns of a pair over the trained length. The code mixes linearly by the index of
    the pair, between the pairs with 32 and with 1 turns, and other libraries follow the code.
    """
    d = 2 * len(frequencies)

    def pair_with(turns: float) -> float:
        return d * math.log(trained_length / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = max(math.floor(pair_with(FASTEST)), 0), min(math.ceil(pair_with(SLOWEST)), d - 1)
    index = torch.arange(len(frequencies), device=frequencies.device, dtype=torch.float32)
    # Both ends may be the same pair.
    slowed = ((index - first) / max(last - first, 0.001)).clamp(0, 1)
    return frequencies * (1 - slowed) + frequencies / factor * slowed


SCALINGS: dict[str, Callable[[Tensor, float, float, int], Tensor] | None] = {
    "none": None,
    "linear": _interpolated,
    "ntk": _ntk_aware,
    "yarn": _yarn,
}


class RotaryPositions(PositionScheme):
    """Rotates columns ``(2k, 2k+1)`` of every query and key at position p by ``p / base^(2k/d_head)`` radians.

    A score then depends on positions only through the offset ``i - j``. No parameters and no longest sequence.

    Source: Su et al. 2021 (2104.09864), section 3.2, with interleaved pairs as in the paper. The half-split layout of
    other implementations is a fixed permutation of the columns.

    Args:
        d_head: width of a head; even.
        max_context_length: the length that the model is trained for, in tokens; ``yarn`` needs it.
        base: the slowest pair rotates by ``base^(-(d_head-2)/d_head)`` radians per position.
        scaling: how the angles are slowed down for sequences longer than those in training: ``none``, ``linear``
            (`_interpolated`), ``ntk`` (`_ntk_aware`) or ``yarn`` (`_yarn`, which also multiplies queries and keys by
            ``0.1 log(factor) + 1``).
        factor: how many times as long; 1 or more, and 1 without scaling.
        fraction: share of the columns that are rotated, rounded down to pairs; the others get no position.

    Raises:
        ValueError: odd ``d_head``, ``base <= 1``, an unknown scaling, or a factor or fraction out of range.
    """

    sees = "distances"

    def __init__(
        self,
        d_head: int,
        base: float = 10000.0,
        scaling: str = "none",
        factor: float = 1.0,
        fraction: float = 1.0,
        max_context_length: int | None = None,
    ) -> None:
        super().__init__()
        if d_head < 2 or d_head % 2:
            raise ValueError(
                f"d_head {d_head} is odd, but rotary positions turn pairs of columns; "
                "choose d_model and n_heads so that d_model / n_heads is even"
            )
        if not base > 1:
            raise ValueError(f"base {base} must be above 1 (10000 in the paper)")
        if scaling not in SCALINGS:
            raise ValueError(f"scaling={scaling} is unknown; choose one of {', '.join(SCALINGS)}")
        if not factor >= 1 or (scaling == "none" and factor != 1):
            raise ValueError(f"factor {factor} must be at least 1, and 1 with scaling=none; scaling is {scaling}")
        self.d_rotated = 2 * int(fraction * d_head / 2)
        if not (0 < fraction <= 1 and self.d_rotated):
            raise ValueError(
                f"fraction {fraction} of d_head {d_head} must be in (0, 1] and at least one pair of columns"
            )
        if scaling == "ntk" and self.d_rotated < 4:
            raise ValueError(
                f"scaling=ntk needs 4 rotated columns or more, and of d_head {d_head} it has {self.d_rotated}"
            )
        if scaling == "yarn" and max_context_length is None:
            raise ValueError("scaling=yarn needs max_context_length, the length that the model was trained for")
        self.d_head = d_head
        self.base = base
        self.scaling, self.factor, self.fraction = scaling, factor, fraction
        self.trained_length = max_context_length or 1
        self.temperature = 0.1 * math.log(factor) + 1 if scaling == "yarn" else 1.0

    def frequencies(self, device: torch.device) -> Float[Tensor, " pairs"]:
        """Radians per position of each rotated pair of columns, in fp32."""
        # Not a buffer: casting the module to bf16 would round the frequencies, and large positions amplify the error.
        pairs = torch.arange(0, self.d_rotated, 2, device=device, dtype=torch.float32)
        frequencies = self.base ** (-pairs / self.d_rotated)
        scaled = SCALINGS[self.scaling]
        return frequencies if scaled is None else scaled(frequencies, self.base, self.factor, self.trained_length)

    def rotate(self, x: Float[Tensor, "b h t d_head"], start: int = 0) -> Float[Tensor, "b h t d_head"]:
        """Rotate queries or keys (B, H, T, d_head) at positions ``start .. start + T - 1``; computed in fp32."""
        return self._turned(x, torch.arange(start, start + x.shape[-2], device=x.device))

    def rotate_at(self, x: Float[Tensor, "b h t d_head"], placed: Placed) -> Float[Tensor, "b h t d_head"]:
        return self._turned(x, placed.positions[:, None])

    def _turned(self, x: Tensor, positions: Int64[Tensor, "*b t"]) -> Tensor:
        angles = positions[..., None].float() * self.frequencies(x.device)
        cos, sin = angles.cos(), angles.sin()
        turned = x[..., : self.d_rotated]
        even, odd = turned[..., 0::2].float(), turned[..., 1::2].float()
        rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
        if self.d_rotated < self.d_head:
            rotated = torch.cat((rotated, x[..., self.d_rotated :].float()), dim=-1)
        if self.temperature != 1:
            rotated = rotated * self.temperature
        return rotated.to(x.dtype)

    def extra_repr(self) -> str:
        scaled = "" if self.scaling == "none" else f", scaling={self.scaling}, factor={self.factor}"
        return f"d_head={self.d_head}, base={self.base}{scaled}"
