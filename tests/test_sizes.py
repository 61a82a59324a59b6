"""The estimate of what a job needs: close, never more than the job takes, and refused if the machine has less."""

import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from poslab.build import build_model, build_task, check_memory, sizes_of
from poslab.config.schema import TrainConfig, checked
from poslab.data.module import SeedData
from poslab.errors import ConfigError
from poslab.model import LanguageModel
from poslab.preflight.checks import check_buildable
from poslab.sizes import model_parts, training_parts, validation_parts
from poslab.system import memory
from support.configs import compose


def job_of(*overrides: str) -> TrainConfig:
    return checked(compose(*overrides))


def set_memory(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    monkeypatch.setattr(memory, "memory_bytes", lambda: size)
    monkeypatch.setattr("poslab.build.memory_bytes", lambda: size)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("model=transformer", "model.n_layers=3", "model.tie_embeddings=true"),
        ("pos=none", "model.vocab_size=1000", "model.max_context_length=100"),
    ],
    ids=" ".join,
)
def test_the_model_is_estimated_from_below_and_closely(overrides: tuple[str, ...]) -> None:
    job = job_of(*overrides)
    task = build_task(job)
    model = build_model(job, task)
    tensors = [*model.parameters(), *model.buffers()]
    exact = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    least = sum(part.size for part in model_parts(sizes_of(job, task)))
    assert 0.8 * exact < least <= exact


def test_the_validation_set_is_estimated_from_below_and_closely() -> None:
    job = job_of("data.val_examples=4096", "data.val_batch_size=256")
    task = build_task(job)
    tokens = SeedData(task, job.data, 0, task.vocab_size).validation.batches
    exact = sum(part.numel() * part.element_size() for batch in tokens for part in batch)
    (kept,) = (part.size for part in validation_parts(sizes_of(job, task)) if part.name == "the validation set")
    assert kept == exact


def saved_for_backward(model: LanguageModel, tokens: Tensor) -> int:
    """Bytes that a forward pass keeps, without the parameters."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.setdefault(tensor.untyped_storage().data_ptr(), tensor), lambda tensor: tensor
    ):
        logits = model(tokens)
        F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
    return sum(tensor.untyped_storage().nbytes() for at, tensor in kept.items() if at not in parameters)


@pytest.mark.parametrize("precision", ["32", "bf16"])
@pytest.mark.parametrize("architecture", ["attention", "transformer"])
def test_a_batch_is_estimated_from_below_and_closely(architecture: str, precision: str) -> None:
    job = job_of(f"model={architecture}", f"trainer.precision={precision}", "model.d_model=64", "data.batch_size=128")
    task = build_task(job)
    tokens = torch.from_numpy(task.sample(np.random.default_rng(0), job.data.batch_size).tokens)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        exact = saved_for_backward(build_model(job, task), tokens)
    sizes = replace(sizes_of(job, task), val_batch_size=1)
    (estimate,) = (part.size for part in training_parts(sizes) if part.name == "a batch")
    # The logits are counted twice, for their gradient or their softmax, and kept once.
    logits = 4 * tokens.numel() * task.vocab_size
    assert 0.75 * exact < estimate - logits <= exact


REFUSED = {
    "data.batch_size=100000000": "a batch|data.batch_size=100000000",
    "data.val_examples=10000000000": "the validation set|data.val_examples=10000000000",
    "model.d_model=65536": "the model|model.d_model=65536",
    "model=transformer model.n_layers=1000000000": "the model|model.n_layers=1000000000",
    "model=transformer model.n_layers=1000 model.max_context_length=30000": "its causal masks|the context of 30000",
    "task.n_symbols=1000000000": "the model|the vocabulary of 1000000001",
}


@pytest.mark.parametrize(("overrides", "parts"), REFUSED.items(), ids=list(REFUSED))
def test_what_cannot_fit_is_named(overrides: str, parts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_memory(monkeypatch, 16.0 * 2**30)
    job = job_of("trainer=cpu", *overrides.split(" "))
    task = build_task(job)
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError) as refusal:
            check_buildable(job, task)
        assert tracemalloc.get_traced_memory()[1] < 2**20, "it was made to find out"
    finally:
        tracemalloc.stop()
    assert all(part in str(refusal.value) for part in [*parts.split("|"), "16.0 GiB"]), refusal.value


def test_the_largest_number_of_replicas_is_named_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    set_memory(monkeypatch, 2.0**30)
    job = job_of("trainer=cpu", "seeds=100000")
    with pytest.raises(
        ConfigError, match=r"^seeds=100000 at about \d MiB a replica does not fit the 1.0 GiB"
    ) as refusal:
        check_memory(job, build_task(job))
    most = int(re.search(r"use at most (\d+), in several runs$", str(refusal.value))[1])
    check_memory(replace(job, seeds=most), build_task(job))
    with pytest.raises(ConfigError, match=f"use at most {most}"):
        check_memory(replace(job, seeds=most + 1), build_task(job))


def test_each_process_has_its_part_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    set_memory(monkeypatch, 2.0**30)
    job = job_of("trainer=cpu", "model.d_model=256", "data.batch_size=16384")
    with pytest.raises(ConfigError, match=r"a batch would take at least .* data.batch_size=16384"):
        check_memory(job, build_task(job))
    shared = job_of(
        "trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=4", "model.d_model=256", "data.batch_size=16384"
    )
    check_memory(shared, build_task(shared))


def test_what_fits_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    set_memory(monkeypatch, 2.0**30)
    # A validation batch has no more rows than the set, whatever its size is said to be.
    large = ["data.val_batch_size=10000000000"]
    for overrides in ([], ["model=transformer", "model.d_model=256"], ["data.batch_size=4096"], large):
        job = job_of("trainer=cpu", *overrides)
        check_memory(job, build_task(job))
