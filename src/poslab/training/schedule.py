"""The learning rate's schedule."""

import math


class LearningRateFactor:
    """The schedule as a factor on the rate: linear warm-up, then constant, linear or cosine decay to zero.

    Update ``s`` (from 0) of ``total`` has factor ``(s + 1) / (warmup + 1)`` while ``s < warmup``; after that, with
    ``u = (s - warmup) / (total - warmup)``, linear is ``1 - u`` and cosine ``(1 + cos(pi u)) / 2``.
    """

    def __init__(self, warmup: int, decay: str, total: int) -> None:
        self.warmup = warmup
        self.decay = decay
        self.total = total

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        progress = min(1.0, (step - self.warmup) / max(1, self.total - self.warmup))
        return DECAYS[self.decay](progress)


def _constant(progress: float) -> float:
    return 1.0


def _linear(progress: float) -> float:
    return 1.0 - progress


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


DECAYS = {"none": _constant, "linear": _linear, "cosine": _cosine}
