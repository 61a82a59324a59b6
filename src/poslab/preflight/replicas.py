"""Refuses several replicas of a job that cannot be trained together."""

import numpy as np
import torch

from poslab.config.schema import TrainConfig
from poslab.data.stream import side_by_side
from poslab.errors import ConfigError
from poslab.sizes import A_PARAMETER, memory_bytes, needs_of_model
from poslab.tasks import Task
from poslab.training.learner import Learner
from poslab.training.learners import build_learner


def check_memory_of_replicas(job: TrainConfig, task: Task) -> None:
    """Refuse more replicas than the memory holds; a single one is checked elsewhere.

    Raises:
        ConfigError: names the sizes and how many fit.
    """
    if job.seeds == 1:
        return
    # The activations of a layer are about 20 D a token, its scores (H, T) three times over, the head's output twice.
    tokens = job.data.batch_size * task.seq_len
    a_token = job.model.d_model * 20 + 3 * job.model.n_heads * task.seq_len
    vocab_size = job.model.vocab_size or task.vocab_size
    a_replica = sum(need.size for need in needs_of_model(job, task, A_PARAMETER))
    a_replica += 4 * tokens * (a_token * job.model.n_layers + 2 * vocab_size)
    if job.seeds * a_replica > memory_bytes():
        raise ConfigError(
            f"seeds={job.seeds} at about {a_replica / 2**20:.0f} MiB a replica does not fit the "
            f"{memory_bytes() / 2**30:.1f} GiB of this machine; use at most {int(memory_bytes() // a_replica)}, "
            "in several runs"
        )


def try_together(job: TrainConfig, task: Task) -> Learner:
    """Build the replicas of a job and refuse them if one batch cannot be computed for all together.

    Raises:
        ConfigError: names the reason and the way out.
    """
    try:
        learner = build_learner(job, task)
        states = list(learner.random_states)
        batch = side_by_side([task.sample(np.random.default_rng(0), 1)] * job.seeds)
        with torch.no_grad():
            learner.module(batch.tokens, batch.seq_lens)
        # What the trial drew, training is to draw again.
        learner.random_states = states
        return learner
    except ConfigError:
        raise
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"seeds={job.seeds}: these replicas cannot be trained together ({reason}); "
            f"use -m seed={job.seed},{job.seed + 1},... instead"
        ) from error
