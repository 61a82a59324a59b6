"""What is compared: the outcomes of a job, and by which of them two levels are judged."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from poslab.comparison.collect import DIVERGED, Job
from poslab.comparison.history import GOOD
from poslab.comparison.statistics import TINY, hidden_log_variance
from poslab.runs.learning import Crossing

Name = Literal["learned", "speed", "late", "area", "loss", "past"]
EXACT, LOSS = "val/exact_match", "val/loss"
PAST = "length/past/exact_match"
"""Mean exact match past the training length; `poslab.comparison.past` computes it, runs do not store it."""


@dataclass(frozen=True)
class Outcome:
    """A number of a job on the scale on which it is tested.

    Attributes:
        name: as in ``comparison.json``.
        what: what was measured, as text.
        value: the number; None if the job has none.
        hidden: the variance of the number that comes from rounding to logged steps.
        logs: whether the number is a logarithm, so that a difference is a factor.
    """

    name: Name
    what: str
    value: Callable[[Job], float | None]
    hidden: Callable[[Job], float] = lambda job: 0.0
    logs: bool = True


def learned(job: Job) -> bool | None:
    """Whether the job's last validation has exact match of at least 99 %; False if it diverged; None if unknown."""
    if job.status == DIVERGED:
        return False
    exact = job.metrics.get(EXACT)
    return None if not job.completed or exact is None else exact >= GOOD


def _log(value: float | None) -> float | None:
    return None if value is None else math.log(max(value, TINY))


def _steps(found: Crossing | None) -> float | None:
    return None if found is None else math.log(max(1.0, found.step))


def _hidden(found: Crossing | None, job: Job) -> float:
    """Only validations are so rare that the steps between them matter."""
    if found is None or job.learning.source != "validation":
        return 0.0
    return hidden_log_variance(max(1.0, found.before), max(1.0, found.after))


SPEED = Outcome(
    "speed",
    "steps to a quarter of the start loss",
    lambda job: _steps(job.learning.quarter),
    lambda job: _hidden(job.learning.quarter, job),
)
LATE = Outcome(
    "late",
    "steps to 0.1 nats",
    lambda job: _steps(job.learning.nats),
    lambda job: _hidden(job.learning.nats, job),
)
AREA = Outcome("area", "area under the loss curve", lambda job: _log(job.learning.area))
FINAL = Outcome("loss", "final validation loss", lambda job: _log(job.metrics.get(LOSS)))
PAST_TRAINING = Outcome("past", "exact match past the training length", lambda job: job.metrics.get(PAST), logs=False)
EVERY = {outcome.name: outcome for outcome in (SPEED, LATE, AREA, FINAL, PAST_TRAINING)}
