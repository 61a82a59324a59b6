"""How a model is trained on several ranks: the strategy, and the callbacks that only several ranks need."""

from collections.abc import Mapping
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy

from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError
from poslab.training.module import TrainingModule


def build_strategy(job: TrainConfig) -> Strategy | str:
    """Lightning's strategy for ``trainer.strategy``.

    ``ddp``: every rank holds the whole model; gradients are averaged.

    ``fsdp``: every rank holds its part of each parameter, gradient and optimiser state; a checkpoint is one whole file.
    This is torch's fully sharded data parallelism in its second form, which also runs on CPUs.
    Source: Zhao et al. 2023 (2304.11277).
    """
    if job.trainer.strategy == "ddp":
        return DDPStrategy()
    if job.trainer.strategy == "fsdp":
        ranks = job.trainer.devices * job.trainer.num_nodes
        return ModelParallelStrategy(
            data_parallel_size=ranks, tensor_parallel_size=1, save_distributed_checkpoint=False
        )
    return job.trainer.strategy


class SameRunCheck(Callback):
    """Ends every rank before the first step if they were not all given the same run.

    Args:
        run: what must be equal on all ranks, by its name.
    """

    def __init__(self, run: Mapping[str, Any]) -> None:
        self.run = run

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        if trainer.world_size == 1:
            return
        runs: list[Any] = [None] * trainer.world_size
        torch.distributed.all_gather_object(runs, self.run)
        for rank, other in enumerate(runs):
            for name, value in runs[0].items():
                if other[name] != value:
                    raise ConfigError(
                        f"the processes of this run differ: {name} is {value} for rank 0 and {other[name]} for rank "
                        f"{rank}; start all of them by the same command, in the same place"
                    )


class GatherModel(Callback):
    """Gathers a model that is sharded among the ranks on rank 0, where the diagnostics read it.

    Args:
        only_end: no diagnostic reads it before the training has ended.
    """

    def __init__(self, only_end: bool = False) -> None:
        self.only_end = only_end
        self._step: int | None = None

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if not self.only_end:
            self._gather(trainer, pl_module)

    on_validation_end = on_train_start

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        self._gather(trainer, pl_module)

    on_fit_end = on_train_end

    def _gather(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if self._step != trainer.global_step:
            self._step = trainer.global_step
            gather_model(module)


def gather_model(module: lightning.LightningModule) -> None:
    """Bring the whole model on rank 0 up to date; every rank has to call it."""
    assert isinstance(module, TrainingModule)
    module.learner.gather()
