"""The numbers a search can be for: which there are, known before the first trial, and which value a job reached."""

import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from poslab.build import build_model, build_task
from poslab.config.rules import nearest
from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError
from poslab.sweeps.search.options import Objective

SECONDS = "seconds"


def check_objectives(objectives: Sequence[Objective], jobs: Iterable[TrainConfig]) -> None:
    """Refuse a metric that no result would have.

    Args:
        objectives: what is searched for.
        jobs: some of the trials that will be run; they are looked at only until every name is found.

    Raises:
        ConfigError: names the metric, its direction, the nearest one and all that there are.
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
    """Every number that this job's ``result.json`` will hold, found by training one step of it on one example."""
    import lightning

    from poslab.data.module import TaskData
    from poslab.diagnostics import Gallery, build_diagnostics
    from poslab.experiment.run import final_metrics
    from poslab.experiment.trainer import quieten
    from poslab.model import parameters_by_part
    from poslab.runs.table import MetricsTable
    from poslab.training.module import CopyModule

    quieten()
    task = build_task(job)
    model = build_model(job, task)
    # A rate so low that the step cannot diverge.
    module = CopyModule(model, replace(job.optimizer, lr=1e-9), log_every_n_steps=1)
    data = replace(job.data, batch_size=1, steps_per_epoch=1, val_examples=1, num_workers=0)
    with tempfile.TemporaryDirectory() as folder:
        table = MetricsTable(Path(folder))
        trainer = lightning.Trainer(
            default_root_dir=folder,
            accelerator="cpu",
            devices=1,
            max_steps=1,
            max_epochs=-1,
            logger=table,
            # A gallery that is not among the callbacks draws nothing.
            callbacks=[*build_diagnostics(job.diagnostics, Gallery())],
            log_every_n_steps=1,
            num_sanity_val_steps=0,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, datamodule=TaskData(task, data, job.seed, model.vocab_size))
    return {*final_metrics(table, model), *parameter_names(parameters_by_part(model.parts())), SECONDS}


def parameter_names(parameters: Mapping[str, int]) -> dict[str, float]:
    return {f"parameters/{part}": float(count) for part, count in parameters.items()}


def reached(result: Mapping[str, Any], objectives: Sequence[Objective]) -> dict[str, float]:
    """The objectives' values in a ``result.json``; without those that are missing or no finite number."""
    numbers = {
        **parameter_names(result.get("parameters", {})),
        **result.get("metrics", {}),
        SECONDS: result.get("wall_seconds"),
    }
    wanted = {objective.metric: numbers.get(objective.metric) for objective in objectives}
    return {
        name: float(value) for name, value in wanted.items() if isinstance(value, (int, float)) and math.isfinite(value)
    }
