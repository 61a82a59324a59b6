"""Refuses a job whose replicas cannot be trained together."""

import numpy as np
import torch

from poslab.config.schema import TrainConfig
from poslab.data.stream import side_by_side
from poslab.errors import ConfigError
from poslab.tasks import Task
from poslab.training.learner import Learner
from poslab.training.learners import build_learner


def try_together(job: TrainConfig, task: Task) -> Learner:
    """Build the replicas of a job; refuse them if they cannot compute one batch together.

    Raises:
        ConfigError: names the reason and the way out.
    """
    try:
        learner = build_learner(job, task)
        states = list(learner.random_states)
        batch = side_by_side([task.sample(np.random.default_rng(0), 1)] * job.seeds)
        with torch.no_grad():
            learner.module(batch.tokens, batch.seq_lens)
        # Training has to draw the random numbers that this trial has drawn.
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
