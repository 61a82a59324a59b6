"""A model for each position scheme and architecture in conf, whose logits lie far apart."""

import functools

import pytest
import torch

from poslab.build import build_model, build_task
from poslab.config.schema import TrainConfig, checked
from poslab.model import LanguageModel
from support.configs import compose
from support.paths import CONF

SCHEMES = sorted(path.stem for path in (CONF / "pos").glob("*.yaml"))


ARCHITECTURES = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))


every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


every_model = pytest.mark.parametrize("architecture", ARCHITECTURES)


@functools.cache
def job_of(*overrides: str) -> TrainConfig:
    return checked(compose(*overrides))


def make(scheme: str, architecture: str, context: int = 24) -> LanguageModel:
    """A model whose logits lie far apart, so that no rounding decides between two tokens."""
    job = job_of(f"pos={scheme}", f"model={architecture}", f"model.max_context_length={context}", "task.n_symbols=12")
    model = build_model(job, build_task(job)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(std=0.4 if "position" in name or "embedding" in name else 0.25)
    return model
