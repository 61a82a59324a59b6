"""How the ranks of a run are started, watched and ended; how a model is shared among them.

Lightning starts the other ranks and kills the first one where one of them is lost. Here the first one says what
happened and leaves the run's folder in order, and no rank outlives it.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from poslab.config.overrides import quoted
from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError, DivergedError, LostRankError
from poslab.system.ranks import PARENT, started_by_first_rank
from poslab.training.module import TrainingModule

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""How long the others wait for a rank that has ended before they end too: what it told them may be on its way."""


class RankLauncher(_SubprocessScriptLauncher):
    """Starts the other ranks of one machine by the command that started this one, and watches over them.

    Args:
        folder: of the run, the same for all ranks.
        on_lost: called with the reason when a rank is lost while this process waits for it for ever; then it ends.
    """

    def __init__(self, *arguments: Any, folder: Path, on_lost: Callable[[str], None]) -> None:
        super().__init__(*arguments)
        self.folder = folder
        self.on_lost = on_lost

    def launch(
        self, function: Callable[..., Any], *args: Any, trainer: lightning.Trainer | None = None, **kwargs: Any
    ) -> Any:
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if self.cluster_environment.creates_processes_externally:
            if started_by_first_rank():
                end_with(int(os.environ[PARENT]))
            return function(*args, **kwargs)
        self._call_children_scripts()
        over = threading.Event()
        threading.Thread(target=self._watch, args=(over,), daemon=True).start()
        try:
            return function(*args, **kwargs)
        except Exception as error:
            lost = None if isinstance(error, (DivergedError, ConfigError)) else self._lost_within(2.0)
            if lost is None:
                raise
            raise LostRankError(lost) from error
        finally:
            over.set()

    def _call_children_scripts(self) -> None:
        self._check_can_spawn_children()
        environment = self.cluster_environment
        os.environ["MASTER_ADDR"] = environment.main_address
        os.environ["MASTER_PORT"] = str(environment.main_port)
        os.environ["NODE_RANK"] = str(environment.node_rank())
        os.environ["LOCAL_RANK"] = str(environment.local_rank())
        os.environ["WORLD_SIZE"] = str(self.num_processes * self.num_nodes)
        for rank in range(1, self.num_processes):
            own = {**os.environ, "LOCAL_RANK": str(rank), PARENT: str(os.getpid())}
            self.procs.append(subprocess.Popen(same_command(self.folder), env=own))

    def _lost(self) -> str | None:
        for rank, process in enumerate(self.procs, start=1):
            if process.poll():
                return f"rank {rank} (process {process.pid}) ended with exit code {process.returncode}"
        return None

    def _lost_within(self, seconds: float) -> str | None:
        """Why a rank is lost, if one is: the connection breaks before the system says that the process has ended."""
        deadline = time.monotonic() + seconds
        while (lost := self._lost()) is None and time.monotonic() < deadline:
            if all(process.returncode == 0 for process in self.procs):
                break
            time.sleep(0.05)
        return lost

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(0.5):
            lost = self._lost()
            if lost is not None and not over.wait(PATIENCE_SECONDS):
                # This process waits in a collective operation that will never end, and no exception reaches it there.
                self.kill(signal.SIGKILL)
                self.on_lost(lost)
                logging.shutdown()
                os._exit(1)


def same_command(folder: Path) -> Sequence[str]:
    """The command that started this process, for another rank of the same run."""
    hydra = [f"hydra.run.dir={quoted(str(folder.absolute()))}", "hydra.output_subdir=null"]
    return [sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:], *hydra]


def end_with(parent: int) -> None:
    """End this process when its first rank is gone: nobody else would, and it might wait for ever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        time.sleep(PATIENCE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class ReplicatedStrategy(DDPStrategy):
    """Every rank holds the whole model; gradients are averaged. ``trainer=ddp``."""

    def __init__(self, folder: Path, on_lost: Callable[[str], None]) -> None:
        super().__init__()
        self._watching: dict[str, Any] = {"folder": folder, "on_lost": on_lost}

    def _configure_launcher(self) -> None:
        # Also around ranks that were started from outside: it starts nothing then.
        self._launcher = RankLauncher(self.cluster_environment, self.num_processes, self.num_nodes, **self._watching)


class ShardedStrategy(ModelParallelStrategy):
    """Every rank holds its part of each parameter, gradient and optimiser state; a checkpoint is one whole file.

    ``trainer=fsdp``. Torch's own fully sharded data parallelism in its second form, which also runs on CPUs.

    Source: Zhao et al. 2023 (2304.11277).

    Args:
        n_devices: ranks, over all machines.
    """

    def __init__(self, folder: Path, on_lost: Callable[[str], None], n_devices: int) -> None:
        super().__init__(data_parallel_size=n_devices, tensor_parallel_size=1, save_distributed_checkpoint=False)
        self._watching: dict[str, Any] = {"folder": folder, "on_lost": on_lost}

    def _configure_launcher(self) -> None:
        self._launcher = RankLauncher(self.cluster_environment, self.num_processes, self.num_nodes, **self._watching)


def build_strategy(job: TrainConfig, folder: Path, on_lost: Callable[[str], None]) -> Strategy | str:
    """What ``trainer.strategy`` stands for."""
    if job.trainer.strategy == "ddp":
        return ReplicatedStrategy(folder, on_lost)
    if job.trainer.strategy == "fsdp":
        return ShardedStrategy(folder, on_lost, job.trainer.devices * job.trainer.num_nodes)
    return job.trainer.strategy


class Agreement(Callback):
    """Ends every rank before the first step unless all were given the same run.

    Args:
        run: what has to be the same, by its name.
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


class SharedLook(Callback):
    """Puts a model that is shared among the ranks together before the diagnostics, which run on the first one only.

    Args:
        only_end: there are none, and nobody looks before the end.
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
        if isinstance(module, TrainingModule) and self._step != trainer.global_step:
            self._step = trainer.global_step
            module.learner.gather()
