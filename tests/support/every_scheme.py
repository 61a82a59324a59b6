"""A model with each position scheme in conf/pos."""

from functools import cache

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from poslab.build import build_model, build_task
from poslab.config.schema import TrainConfig, checked
from poslab.model import LanguageModel
from support.configs import compose
from support.paths import CONF

SCHEMES = sorted(path.stem for path in (CONF / "pos").glob("*.yaml"))


MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))


D, H, L = 16, 4, 12


every_scheme = pytest.mark.parametrize("name", SCHEMES)


every_model = pytest.mark.parametrize("architecture", MODELS)


@cache
def composed(name: str, architecture: str) -> DictConfig:
    sizes = (f"model.d_model={D}", f"model.n_heads={H}", "model.token_init_std=1.0")
    return compose(f"pos={name}", f"model={architecture}", *sizes)


@cache
def job_of(name: str, architecture: str, **sizes: float) -> TrainConfig:
    return checked(OmegaConf.merge(composed(name, architecture), {"model": sizes}))


def model_of(name: str, architecture: str = "attention", **sizes: float) -> LanguageModel:
    """A model with that scheme, every parameter of the scheme moved far from its start so that it matters."""
    job = job_of(name, architecture, **sizes)
    torch.manual_seed(1)
    model = build_model(job, build_task(job)).eval()
    with torch.no_grad():
        # The angles of pope are clamped at 0 from above.
        sign = -1 if name == "pope" else 1
        for parameter in model.positions.parameters():
            parameter.add_(sign * 0.5 * torch.rand_like(parameter))
    return model


def ids_of(model: LanguageModel, length: int = L, batch: int = 3) -> Tensor:
    return torch.randint(model.vocab_size, (batch, length), generator=torch.Generator().manual_seed(2))


def logits_of(model: LanguageModel, ids: Tensor, return_weights: bool = False) -> Tensor:
    return model(ids, return_weights=True)[0] if return_weights else model(ids)
