"""Builds the learner of a job."""

from typing import NamedTuple

import torch

from poslab.build import build_model, build_task
from poslab.config.schema import TrainConfig
from poslab.tasks import Task
from poslab.training.learner import Learner, OneModel
from poslab.training.stack import ModelStack, StackLearner, own_random_state
from poslab.training.start_weights import load_start_weights


def build_learner(job: TrainConfig, task: Task) -> Learner:
    """One model, or a stack of ``seeds`` models, each with the parameters that a run with its seed starts from.

    With ``init_from`` they are those of the file; what is drawn later is as without it.

    Raises:
        ConfigError: sizes that do not fit each other, or those of ``init_from``.
        ValueError: the replicas differ in more than their parameters.
    """
    models, states = [], []
    with own_random_state():
        for seed in range(job.seed, job.seed + job.seeds):
            torch.manual_seed(seed)
            models.append(build_model(job, task))
            states.append(torch.get_rng_state())
    if job.init_from is not None:
        load_start_weights(models, job)
    if job.seeds == 1:
        return OneModel(models[0], states[0], job.compile)
    return StackLearner(ModelStack(models, states), job.compile)


class Prepared(NamedTuple):
    """A checked job and what was built for it: one process checks and builds once."""

    job: TrainConfig
    task: Task
    learner: Learner


def prepare(job: TrainConfig) -> Prepared:
    """Build the task and the models of a checked job.

    Raises:
        ConfigError: they cannot be built.
    """
    task = build_task(job)
    return Prepared(job, task, build_learner(job, task))
