"""The launchers ``hydra/launcher=joblib``, ``ray`` and ``submitit_*``; Hydra looks for launchers in this package only.

With the public plugins a job whose process dies ends the whole sweep. The one for Ray also requires cloudpickle below 3
and boto3, and together they slow down every start of the program.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class OwnLaunchersFirst(SearchPathPlugin):
    """Removes a public plugin's settings where the program has its own ``hydra/launcher/joblib.yaml``.

    Hydra would take the plugin's settings of the same name for a schema and merge the two.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        launchers = ConfigStore.instance().repo.get("hydra", {}).get("launcher", {})
        for entry in search_path.get_path():
            if entry.provider == "main" and entry.path is not None:
                for own in Path(entry.path.removeprefix("file://"), "hydra", "launcher").glob("*.yaml"):
                    launchers.pop(own.name, None)


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
