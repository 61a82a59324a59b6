"""Sweeps drawn at random with a known effect or none, and what the comparison says about them."""

import json
import math
import random
import sys
from collections.abc import Callable, Sequence

from poslab.comparison.axes import varying
from poslab.comparison.collect import Job
from poslab.comparison.contrasts import Contrast, contrasts
from poslab.comparison.statements import Plan, Statement, statements
from poslab.comparison.verdicts import kind_of
from poslab.runs.learning import Crossing, Learning

EXACT = "val/exact_match"


Settings = dict[str, int | float | str]


def job(
    steps: float | None, loss: float = 0.002, every: int = 20, status: str = "completed", **settings: object
) -> Job:
    """A job whose loss fell below a quarter of its start at ``steps``, as far as its logged steps can tell.

    ``model__n_heads`` is ``model.n_heads``. With ``steps=None`` it did not learn, and its area follows its loss.
    """
    levels: Settings = {key.replace("__", "."): value for key, value in settings.items()}  # type: ignore[misc]
    quarter, area = None, 300 * loss
    if steps is not None:
        after = math.ceil(steps / every) * every
        quarter, area = Crossing(after if every > 20 else steps, after - every, after), 0.9 * steps
    return Job(
        sweep="sweep",
        name=str(levels),
        folder=None,
        status=status,
        settings=levels,
        seed=int(levels["seed"]),
        metrics={"val/loss": loss, EXACT: float(steps is not None)} if status == "completed" else {},
        learning=Learning(quarter=quarter, area=area, source="validation" if every > 20 else "train"),
    )


def grid(
    rng: random.Random,
    *,
    effect: float = 1.0,
    pos: Sequence[str] = ("learned", "sinusoidal"),
    heads: Sequence[int] = (4, 8),
    widths: Sequence[int] = (32, 64),
    seeds: int = 3,
    spread: float = 0.15,
    shared: float = 0.0,
    between: float = 0.0,
    every: int = 20,
    reached: bool = True,
) -> list[Job]:
    """A sweep in which ``learned`` takes ``effect`` times the steps and loss, and nothing else matters.

    ``shared`` is a spread that all jobs of a level with the same seed have in common, because they start alike;
    ``between`` one of settings, in common to all of their seeds.
    """
    start = rng.uniform(120, 400)
    noise: dict[object, float] = {}

    def common(size: float, *key: object) -> float:
        return noise.setdefault(key, rng.gauss(0, size))

    jobs = []
    for scheme in pos:
        for n_heads in heads:
            for d_model in widths:
                for seed in range(seeds):
                    log = rng.gauss(0, spread) + common(between, n_heads, d_model)
                    log += common(shared, scheme, seed) + common(shared, n_heads, seed) + common(shared, d_model, seed)
                    steps = start * math.exp(log) * (effect if scheme == "learned" else 1)
                    loss = 1e-5 * steps
                    levels = {"pos": scheme, "model.n_heads": n_heads, "model.d_model": d_model, "seed": seed}
                    jobs.append(job(steps if reached else None, loss, every, **levels))
    return jobs


def say(jobs: Sequence[Job], plan: Plan | None = None) -> list[Statement]:
    return statements(jobs, varying([job.settings for job in jobs]), plan)[0]


def texts(jobs: Sequence[Job], kind: str) -> list[str]:
    return [each.text for each in say(jobs) if each.kind == kind]


NO_EFFECT: dict[str, Callable[[random.Random], list[Job]]] = {
    "independent": lambda rng: grid(rng),
    "jobs of a seed alike": lambda rng: grid(rng, shared=0.2, spread=0.02),
    "by area": lambda rng: grid(rng, shared=0.2, spread=0.05, reached=False),
    "rare validations": lambda rng: grid(rng, every=120, shared=0.2, spread=0.02),
    "two seeds, rare validations": lambda rng: grid(rng, every=120, seeds=2, shared=0.3, spread=0.0),
    "five schemes": lambda rng: grid(rng, pos="abcde", widths=(32,), shared=0.1, every=2),
    "eight seeds": lambda rng: grid(rng, seeds=8, widths=(32,), shared=0.1),
}


SWEEPS = 300


def _claims(jobs: Sequence[Job]) -> tuple[bool, bool]:
    """Whether any difference is claimed, and whether one is claimed to depend on the setting: a family of its own."""
    found = contrasts(jobs, varying([job.settings for job in jobs]))
    return _claimed(found)


def _claimed(found: Sequence[Contrast]) -> tuple[bool, bool]:
    claims = [each for each in found if kind_of(each) == "different"]
    return any(not each.depends for each in claims), any(each.depends for each in claims)


def false_claims() -> dict[str, tuple[float, float]]:
    """By case the shares of simulated sweeps of which something is claimed: of differences, and of interactions.

    A last case counts claims on positions only: its settings do differ, and a quarter of its jobs are missing.
    """
    rates = {}
    for name, make in NO_EFFECT.items():
        found = [_claims(make(random.Random(at))) for at in range(SWEEPS)]
        rates[name] = tuple(sum(column) / SWEEPS for column in zip(*found, strict=True))
    claims = []
    for at in range(SWEEPS):
        rng = random.Random(at)
        jobs = [each for each in grid(rng, seeds=5, between=1.0, spread=0.1, every=2) if rng.random() < 0.75]
        found = contrasts(jobs, varying([job.settings for job in jobs]))
        claims.append(_claimed([each for each in found if each.axis == "pos"]))
    rates["a quarter missing"] = tuple(sum(column) / SWEEPS for column in zip(*claims, strict=True))
    return rates


if __name__ == "__main__":
    sys.stdout.write(json.dumps(false_claims()))
