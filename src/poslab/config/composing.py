"""Composes the configurations of a command from one reading of its files.

`Composer` takes the place of Hydra's loader, so that an edited file cannot change the later jobs of a running sweep.
"""

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import hydra._internal.hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_search_path import ConfigSearchPath
from hydra.errors import ConfigCompositionException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig

from poslab.config.identity import Role, role_of
from poslab.config.overrides import key_of


class FilesReadOnce(ConfigRepository):
    """Reads each configuration file once."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.read: dict[str, ConfigResult] = {}

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self.read:
            found = super().load_config(config_path)
            if found is None:
                return None
            self.read[config_path] = found
        return copy.deepcopy(self.read[config_path])

    def __deepcopy__(self, memo: dict[int, Any]) -> "FilesReadOnce":
        # Hydra copies the repository for each job that it composes; the copies share what was read.
        return copy.copy(self)


class Composer(ConfigLoaderImpl):
    """Hydra's loader with three changes.

    - It reads each file once.
    - It gives a launcher the configurations that a sweep has checked, instead of composing them again.
    - In a sweep, a setting such as ``pos.base=500`` is applied to each job and need not exist in the default option.

    Attributes:
        jobs: the configuration of each job of the sweep, by the name of its folder; pickled, which takes a tenth of the
            memory.
    """

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.repository = FilesReadOnce(config_search_path)
        self.jobs: dict[str, bytes] = {}

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        options = (run_mode, from_shell, validate_sweep_overrides)
        try:
            return super().load_configuration(config_name, overrides, *options)
        except ConfigCompositionException:
            without = [one for one in overrides if not is_setting_of_a_job(one)]
            if run_mode != RunMode.MULTIRUN or len(without) == len(overrides):
                raise
            try:
                config = super().load_configuration(config_name, without, *options)
            except ConfigCompositionException:
                config = None
            if config is None:
                raise
        # The sweeper reads here what was typed.
        config.hydra.overrides.task = [one for one in overrides if role_of(key_of(one)) is not Role.HYDRA]
        return config

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        prefix = "hydra.sweep.subdir="
        name = next((one.removeprefix(prefix) for one in sweep_overrides if one.startswith(prefix)), "")
        if name not in self.jobs:
            return super().load_sweep_config(master_config, sweep_overrides)
        config: DictConfig = pickle.loads(self.jobs[name])
        return config

    def is_group(self, key: str) -> bool:
        """Whether a key chooses one of several files, as ``pos`` does."""
        return bool(self.repository.group_exists(key))

    def read(self, group: str, options: Sequence[str]) -> None:
        """Read the files of options that later jobs will choose."""
        for option in options:
            if self.repository.config_exists(f"{group}/{option}"):
                self.repository.load_config(f"{group}/{option}")


def is_setting_of_a_job(override: str) -> bool:
    """Whether an override sets one value of a job, ``pos.base=500``, and not a choice or a setting of the sweep."""
    key = key_of(override)
    return "." in key and key.partition(".")[0] != "comparison" and role_of(key) not in (Role.HYDRA, Role.RESTART)


def compose_by_files_read_once() -> None:
    """Make Hydra use `Composer` in this process."""
    hydra._internal.hydra.ConfigLoaderImpl = Composer  # type: ignore[attr-defined]
