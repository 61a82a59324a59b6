"""Exact match past the training length: one number for each job, over the lengths that all jobs share."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from poslab.comparison.collect import Job, without_repeats
from poslab.comparison.outcomes import PAST
from poslab.comparison.settings import by_setting
from poslab.comparison.statements import Statement


class PastTraining(NamedTuple):
    """Jobs with their exact match past the training length.

    Attributes:
        jobs: all jobs; those that were evaluated at every shared length past the training length have the number.
        lengths: those lengths; empty without any.
        unreached: a statement for each setting for which one of the lengths is out of reach.
        method: what the number is; empty without any.
    """

    jobs: list[Job]
    lengths: list[int]
    unreached: list[Statement]
    method: str


def past_training(jobs: Sequence[Job], axes: Sequence[str]) -> PastTraining:
    """Give each job its mean exact match over the lengths at which all jobs were to be evaluated and none was trained.

    A job for which one of these lengths is out of reach has no number.
    """
    evaluated = [job for job in without_repeats(jobs) if job.trained_to is not None and _lengths(job)]
    longest = max((job.trained_to for job in evaluated if job.trained_to is not None), default=0)
    shared = set.intersection(*map(_lengths, evaluated)) if evaluated else set()
    past = sorted(length for length in shared if length > longest)
    if not past:
        return PastTraining([*jobs], [], [], "")
    scored = [
        replace(job, metrics=job.metrics | {PAST: fmean(job.by_length[length] for length in past)})
        if job.completed and all(length in job.by_length for length in past)
        else job
        for job in jobs
    ]
    method = (
        f"Exact match past the training length: the mean over {_listed(past)}, trained to {longest}; differences in "
        "percentage points."
    )
    return PastTraining(scored, past, _unreached(evaluated, axes, past), method)


def _lengths(job: Job) -> set[int]:
    return {*job.by_length, *job.lengths_out_of_reach}


def _listed(lengths: Sequence[int]) -> str:
    return f"length{'s' * (len(lengths) > 1)} {', '.join(map(str, lengths))}"


def _unreached(jobs: Sequence[Job], axes: Sequence[str], past: Sequence[int]) -> list[Statement]:
    findings = []
    for setting in by_setting(jobs, axes):
        lengths = [length for length in past if length in setting.out_of_reach]
        if lengths:
            text = f"{setting.label}: {_listed(lengths)} out of reach, so it is not compared past the training length"
            findings.append(Statement("unknown", text, setting.out_of_reach[lengths[0]]))
    return findings
