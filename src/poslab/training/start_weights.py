"""``init_from``: a new run starts with the weights of another one, and with nothing else of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from poslab.config.origin import weight_files
from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError
from poslab.model import LanguageModel
from poslab.runs.checkpoint import model_weights, read_checkpoint

HEADS = "model.n_heads"
"""The shapes of the parameters do not show it."""


def load_start_weights(models: Sequence[LanguageModel], job: TrainConfig) -> None:
    """Load the weights that ``init_from`` names into the models of a job's replicas.

    Raises:
        ConfigError: a file that cannot be read, or whose model differs; one line that names the first difference.
    """
    files = weight_files(str(job.init_from), range(job.seed, job.seed + len(models)))
    contents = {file: _content(file) for file in dict.fromkeys(files)}
    for model, file in zip(models, files, strict=True):
        _fill(model, contents[file], file, job)


def _content(file: Path) -> Mapping[str, Any]:
    try:
        # It notices a changed byte.
        read_checkpoint(file)
        content: Mapping[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        weights = model_weights(content)
        if not all(one.is_floating_point() and one.layout == torch.strided for one in weights.values()):
            raise TypeError("a parameter is not a dense tensor of floats")
    except Exception as error:
        raise ConfigError(
            f"init_from: {file} cannot be read as a checkpoint of plain values ({type(error).__name__}); it is cut "
            "short, damaged, or not a checkpoint"
        ) from error
    return content


def _fill(model: LanguageModel, content: Mapping[str, Any], file: Path, job: TrainConfig) -> None:
    weights = {name: value.float() for name, value in model_weights(content).items()}
    if any(name.startswith("stacked.") for name in weights):
        raise ConfigError(f"init_from: {file} holds several replicas; give the folder of their run, or of one of them")
    here = model.state_dict()
    for name in dict.fromkeys([*here, *weights]):
        there, own = (_shape(one, name) for one in (weights, here))
        if there != own:
            raise ConfigError(
                f"init_from: {file} is of another model: {name} is {there} there and {own} here; give the sizes and "
                "the pos= of its run (model.vocab_size, model.max_context_length, model.d_model, model.n_layers, ...)"
            )
    heads = content.get("poslab", {}).get("settings", {}).get(HEADS, job.model.n_heads)
    if heads != job.model.n_heads:
        raise ConfigError(
            f"init_from: {file} is of another model: {HEADS} is {heads} there and {job.model.n_heads} here; "
            "give the same"
        )
    for name, value in weights.items():
        if not value.isfinite().all():
            raise ConfigError(f"init_from: {file}: {name} holds NaN or infinite numbers; take another checkpoint")
    model.load_state_dict(weights)
    for name, value in model.state_dict().items():
        if not value.equal(weights[name]):
            raise ConfigError(
                f"init_from: {file} has two matrices where the model has one, {name}; use model.tie_embeddings=false"
            )


def _shape(weights: Mapping[str, Tensor], name: str) -> tuple[int, ...] | str:
    return tuple(weights[name].shape) if name in weights else "missing"
