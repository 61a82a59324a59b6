"""What a search optimises: numbers of ``result.json``, whose names are known before the first trial."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from poslab.build import build_model, build_task
from poslab.config.rules import nearest
from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError
from poslab.runs.metrics import (
    COMPLETED_REPLICAS,
    LOGGED,
    SIMILARITY,
    SIMILARITY_ROWS,
    parameter_metrics,
    with_start_and_best,
)

SECONDS = "seconds"


class Objective(NamedTuple):
    """A number of ``result.json`` and the direction in which it improves."""

    metric: str
    direction: str

    def __str__(self) -> str:
        return f"{self.metric} ({self.direction})"


def check_objectives(objectives: Sequence[Objective], jobs: Iterable[TrainConfig]) -> None:
    """Refuse a metric that no result would hold.

    Args:
        objectives: what the search optimises.
        jobs: samples of its trials, read only until every metric is found.

    Raises:
        ConfigError: names the metric, its direction, the nearest name and all names.
    """
    known: set[str] = set()
    for job in jobs:
        known |= metric_names(job)
        if all(objective.metric in known for objective in objectives):
            return
    for objective in objectives:
        if objective.metric not in known:
            near = nearest(objective.metric, sorted(known))
            hint = f"; did you mean '{near}'?" if near else ""
            raise ConfigError(
                f"hydra.sweeper.objectives: no job has a metric '{objective.metric}' to {objective.direction}{hint} "
                f"There are: {', '.join(sorted(known))}"
            )


def metric_names(job: TrainConfig) -> set[str]:
    """The objectives that a completed run of this job has, from what the run and its diagnostics declare."""
    # Not at the top: torch and Lightning take seconds, and a wrong option is refused without them.
    from poslab.diagnostics import Gallery, build_diagnostics
    from poslab.model import parameters_by_part

    task = build_task(job)
    model = build_model(job, task)
    diagnostics = build_diagnostics(job.diagnostics, Gallery())
    declared = [name for diagnostic in diagnostics for name in diagnostic.scalar_names(task, model)]
    names = with_start_and_best([*LOGGED, *declared]) | {*parameter_metrics(parameters_by_part(model.parts())), SECONDS}
    table = model.positions.trained_table(task.seq_len)
    if table is not None and len(table) > 1:
        names |= {SIMILARITY, SIMILARITY_ROWS}
    if job.seeds > 1:
        names.add(COMPLETED_REPLICAS)
    return names


def reached(result: Mapping[str, Any], objectives: Sequence[Objective]) -> dict[str, float]:
    """The objectives' values in a ``result.json``, without those that are missing, NaN or infinite."""
    numbers = {
        **parameter_metrics(result.get("parameters", {})),
        **result.get("metrics", {}),
        SECONDS: result.get("wall_seconds"),
    }
    wanted = {objective.metric: numbers.get(objective.metric) for objective in objectives}
    return {
        name: float(value) for name, value in wanted.items() if isinstance(value, (int, float)) and math.isfinite(value)
    }
