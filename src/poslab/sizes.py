"""Estimates the memory of a job from its sizes, so that an absurd job is refused before anything of it is built.

The estimate counts the parameters, the optimiser, one batch with its logits and the validation set, and leaves out the
rest: a job that it refuses would not have fitted, and a job that it accepts may still be too large.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from poslab.errors import ConfigError
from poslab.system.files import as_text

TOKEN_BYTES = 8
"""Of a token id, and of a target."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a job; each of its ``processes`` computes a part of ``batch_size``."""

    vocab_size: int
    d_model: int
    n_layers: int
    context: int
    tied: bool
    with_mlp: bool
    bf16: bool
    batch_size: int
    processes: int
    val_batch_size: int
    val_examples: int
    seq_len: int

    @property
    def of_the_model(self) -> str:
        return f"model.d_model={self.d_model}, model.n_layers={self.n_layers}, the vocabulary of {self.vocab_size}"


class Part(NamedTuple):
    """A part of what a job needs: its name, its bytes, and the settings that they follow from."""

    name: str
    size: int
    settings: str


def model_parts(sizes: Sizes, parameter_bytes: int = 4) -> list[Part]:
    """The parts of a model."""
    in_layers = sizes.n_layers * (12 if sizes.with_mlp else 4) * sizes.d_model
    parameters = sizes.d_model * (sizes.vocab_size * (1 if sizes.tied else 2) + in_layers)
    masks = f"the context of {sizes.context}, model.n_layers={sizes.n_layers}"
    return [
        Part("the model", parameter_bytes * parameters, sizes.of_the_model),
        Part("its causal masks", sizes.n_layers * sizes.context**2, masks),
    ]


def training_parts(sizes: Sizes) -> list[Part]:
    """The parts of a training step of one replica, on the device that computes it."""
    # What each layer keeps for the backward pass; the logits in fp32 and their softmax.
    layers = sizes.n_layers * (16 if sizes.with_mlp else 6) * sizes.d_model * (2 if sizes.bf16 else 4)
    logits = 2 * 4 * sizes.vocab_size
    training = sizes.batch_size // sizes.processes * (layers + logits)
    a_token = max(training, min(sizes.val_batch_size, sizes.val_examples) * logits)
    settings = f"data.batch_size={sizes.batch_size}, data.val_batch_size={sizes.val_batch_size}, {sizes.of_the_model}"
    # A parameter has its value, its gradient and the two averages of Adam.
    return [*model_parts(sizes, 4 * 4), Part("a batch", sizes.seq_len * a_token, settings)]


def validation_parts(sizes: Sizes) -> list[Part]:
    """The parts of the validation data, in the memory of the machine."""
    row, tokens = 2 * TOKEN_BYTES * sizes.seq_len, f"{sizes.seq_len} tokens each"
    return [Part("the validation set", sizes.val_examples * row, f"data.val_examples={sizes.val_examples}, {tokens}")]


def scoring_part(sizes: Sizes) -> Part:
    """The part of one batch that is scored: its logits in fp32 and their softmax."""
    rows = min(sizes.val_batch_size, sizes.val_examples)
    settings = f"data.val_batch_size={sizes.val_batch_size}, {sizes.seq_len} tokens each, {sizes.of_the_model}"
    return Part("a batch", 2 * 4 * rows * sizes.seq_len * sizes.vocab_size, settings)


def require(parts: Sequence[Part], available: float, replicas: int = 1) -> None:
    """Refuse parts that need more bytes than are available, or replicas of them that do.

    Raises:
        ConfigError: one line that names the largest part or the number of replicas, the values and the way out.
    """
    size = sum(part.size for part in parts)
    if size > available:
        largest = max(parts, key=lambda part: part.size)
        raise ConfigError(
            f"{largest.name} would take at least {as_text(largest.size)}, and there are {as_text(available)}: "
            f"{largest.settings}; use smaller ones"
        )
    if size * replicas > available:
        raise ConfigError(
            f"seeds={replicas} at about {size / 2**20:.0f} MiB a replica does not fit the {as_text(available)} of "
            f"this machine; use at most {int(available // size)}, in several runs"
        )
