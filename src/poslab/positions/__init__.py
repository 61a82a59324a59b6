"""Position schemes, one file each; all implement the interface in `base`."""

from poslab.positions.alibi import ALiBi
from poslab.positions.base import PerLayer, PositionScheme
from poslab.positions.cable import Cable
from poslab.positions.cope import CoPE
from poslab.positions.fire import FIRE
from poslab.positions.forgetting import ForgettingAttention
from poslab.positions.hard_alibi import HardALiBi
from poslab.positions.kerple_log import KerpleLog
from poslab.positions.kerple_power import KerplePower
from poslab.positions.learned import LearnedPositionalEmbedding
from poslab.positions.learned_alibi import LearnedALiBi
from poslab.positions.mlp_bias import MLPBias
from poslab.positions.none import NoPositions
from poslab.positions.pope import PolarPositions
from poslab.positions.rope import RotaryPositions
from poslab.positions.rope_nope import RopeNoPE
from poslab.positions.sandwich import Sandwich
from poslab.positions.shaw import ShawRelativePositions
from poslab.positions.sinusoidal import SinusoidalPositionalEmbedding
from poslab.positions.t5 import T5Bias
from poslab.positions.transformer_xl import TransformerXLPositions
from poslab.positions.xpos import XPos

__all__ = [
    "FIRE",
    "ALiBi",
    "Cable",
    "CoPE",
    "ForgettingAttention",
    "HardALiBi",
    "KerpleLog",
    "KerplePower",
    "LearnedALiBi",
    "LearnedPositionalEmbedding",
    "MLPBias",
    "NoPositions",
    "PerLayer",
    "PolarPositions",
    "PositionScheme",
    "RopeNoPE",
    "RotaryPositions",
    "Sandwich",
    "ShawRelativePositions",
    "SinusoidalPositionalEmbedding",
    "T5Bias",
    "TransformerXLPositions",
    "XPos",
    "default_scheme",
]


def default_scheme(max_context_length: int, d_model: int) -> PositionScheme:
    """The position scheme of a model that is built without one: a learned table (L, D)."""
    return LearnedPositionalEmbedding(max_context_length, d_model)
