"""The launchers of ``conf/hydra/launcher``; Hydra looks for launchers in this package only.

Every Hydra program of the environment imports this module at its start, so it registers and imports nothing for them.

With the public plugins a job whose process dies ends the whole sweep. The one for Ray also requires cloudpickle below 3
and boto3, and together they slow down every start of the program.
"""

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class ParallelLauncher(Launcher):
    """Runs jobs in parallel; see `poslab.launchers`, which only a sweep that uses it imports.

    Attributes:
        pool_type: the name of the class of its workers there.
        pool: its workers; set by `setup`.
    """

    pool_type: str

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from poslab import launchers

        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config
        self.pool = getattr(launchers, self.pool_type)(**self.settings)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from poslab.launchers import launch

        return launch(self.pool, self.hydra_context, self.task_function, self.config, job_overrides, initial_job_idx)


class JoblibLauncher(ParallelLauncher):
    pool_type = "JoblibPool"


class RayLauncher(ParallelLauncher):
    pool_type = "RayPool"

    def __init__(self, ray: dict[str, Any]) -> None:
        super().__init__(**ray)


class SubmititLauncher(ParallelLauncher):
    pool_type = "SubmititPool"
