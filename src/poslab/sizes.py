"""Whether a job can fit the memory there is, by what it needs at the least.

An estimate from below: what it refuses could not have run, and what it lets pass may still be too large.
"""

import math
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError
from poslab.system.files import as_text
from poslab.tasks import Task

NUMBER = 4
"""Bytes of an fp32 number."""
TOKEN = 8
"""Bytes of a token id, and of a target."""
A_PARAMETER = 4 * NUMBER
"""Its value, its gradient and Adam's two averages."""
MODEL = ("model.d_model", "model.n_layers", "the vocabulary")
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Need(NamedTuple):
    """A part of what a job needs.

    Attributes:
        what: in words.
        size: bytes.
        keys: the settings that make it large.
    """

    what: str
    size: int
    keys: tuple[str, ...]


def memory_bytes() -> float:
    """Of this machine, or less where a container or a limit on this process says so; infinite if nothing tells."""
    limits = [math.inf]
    with suppress(AttributeError, OSError, ValueError):
        limits.append(float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    for path in CGROUP_LIMITS:
        try:
            limits.append(float(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):
            # None here, or "max".
            continue
    try:
        import resource
    except ImportError:
        return min(limits)
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return min([*limits, *([float(soft)] if soft != resource.RLIM_INFINITY else [])])


def device_bytes(job: TrainConfig) -> float:
    """Of what the job computes on: a GPU if it takes one, else this machine."""
    if job.trainer.accelerator == "cpu":
        return memory_bytes()
    import torch

    if not torch.cuda.is_available():
        return memory_bytes()
    return float(torch.cuda.get_device_properties(0).total_memory)


def needs_of_model(job: TrainConfig, task: Task, a_parameter: int = NUMBER) -> list[Need]:
    """What the model itself holds: its parameters at so many bytes each, and a mask in each layer."""
    model = job.model
    vocab = model.vocab_size or task.vocab_size
    context = model.max_context_length or task.seq_len
    tables = vocab * (1 if model.tie_embeddings else 2)
    # The MLP of a transformer's block is 8 D^2 more.
    matrices = model.n_layers * (12 if model.architecture == "transformer" else 4) * model.d_model
    return [
        Need("the model", a_parameter * model.d_model * (tables + matrices), MODEL),
        Need("its causal masks", model.n_layers * context**2, ("the context", "model.n_layers")),
    ]


def needs_on_device(job: TrainConfig, task: Task) -> list[Need]:
    """What training one batch holds where it is computed."""
    model = job.model
    rows = max(job.data.batch_size, min(job.data.val_batch_size, job.data.n_val_examples(task.seq_len)))
    # Queries, keys, values, what is made of them, and the logits with their gradient.
    a_token = NUMBER * (model.n_layers * 5 * model.d_model + 2 * (model.vocab_size or task.vocab_size))
    return [
        *needs_of_model(job, task, A_PARAMETER),
        Need("a batch", rows * task.seq_len * a_token, ("data.batch_size", "data.val_batch_size", *MODEL)),
    ]


def needs_of_data(job: TrainConfig, task: Task) -> list[Need]:
    """What this process holds of the data: a batch, made whole, and the fixed validation set."""
    a_row = 2 * TOKEN * task.seq_len
    data = job.data
    kept = min(task.seq_len_at(length) for length in (task.lengths[0], task.lengths[-1]))
    return [
        Need("a training batch", data.batch_size * a_row, ("data.batch_size", "the task's length")),
        Need("a validation batch", data.val_batch_size * a_row, ("data.val_batch_size", "the task's length")),
        Need(
            "the validation set",
            data.n_val_examples(task.seq_len) * 2 * TOKEN * kept,
            ("data.val_examples", "the task's length"),
        ),
    ]


def check_memory(job: TrainConfig, task: Task) -> None:
    """Refuse a job that cannot fit, before anything of its size is made.

    Raises:
        ConfigError: one line that names the largest part, the values and the way out.
    """
    require(needs_on_device(job, task), device_bytes(job), job, task)
    require(needs_of_data(job, task), memory_bytes(), job, task)


def require(needs: list[Need], there: float, job: TrainConfig, task: Task) -> None:
    """Refuse needs that are together more than there is.

    Raises:
        ConfigError: one line that names the largest part, the values and the way out.
    """
    wanted = sum(need.size for need in needs)
    if wanted <= there:
        return
    largest = max(needs, key=lambda need: need.size)
    values = {
        "model.d_model": job.model.d_model,
        "model.n_layers": job.model.n_layers,
        "the vocabulary": job.model.vocab_size or task.vocab_size,
        "the context": job.model.max_context_length or task.seq_len,
        "data.batch_size": job.data.batch_size,
        "data.val_batch_size": job.data.val_batch_size,
        "data.val_examples": job.data.n_val_examples(task.seq_len),
        "the task's length": task.lengths[-1],
    }
    named = ", ".join(f"{key}={values[key]}" if "." in key else f"{key} of {values[key]}" for key in largest.keys)
    raise ConfigError(
        f"{largest.what} would take at least {as_text(largest.size)}, and there are {as_text(there)}: "
        f"{named}; use smaller ones"
    )
