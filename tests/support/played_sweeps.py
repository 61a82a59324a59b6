"""Sweeps as a person types them, whose jobs a launcher composes as Hydra's do and completes without training."""

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig

from poslab.config.overrides import key_of
from poslab.config.schema import TrainConfig, checked
from poslab.runs.folder import RunFolder
from poslab.runs.result import Result
from support.commands import typed

SMALL = ("trainer=cpu", "trainer.max_steps=2", "data.val_examples=8", "diagnostics=none", "logger=none")


class PlayedLauncher(Launcher):
    """Leaves the folder of a completed run for each job.

    Attributes:
        ran: the configurations that it got, by folder.
        before_each: called before each job.
    """

    def __init__(self, before_each: Callable[[], None] = lambda: None) -> None:
        self.ran: dict[str, TrainConfig] = {}
        self.before_each = before_each
        self.status: Any = "completed"

    def setup(self, *, hydra_context: HydraContext, config: DictConfig, **_: Any) -> None:
        self.context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
        for overrides in job_overrides:
            self.before_each()
            config = self.context.config_loader.load_sweep_config(self.config, list(overrides))
            folder = RunFolder(Path(config.hydra.sweep.dir) / config.hydra.sweep.subdir)
            job = checked(config)
            self.ran[folder.path.name] = job
            if not folder.taken():
                folder.claim(job, list(overrides))
            folder.finish(Result(status=self.status, metrics={"val/loss": 1.0}, seed=job.seed))
        return []


class Sweeps:
    """``sweeps("pos=learned,none")`` types ``python train.py -m`` with these words.

    Attributes:
        folder: where they are typed.
        launcher: the last one.
        said: what went to the console.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        self.launcher = PlayedLauncher()
        self.said = ""

    def __call__(
        self, *words: str, before_each: Callable[[], None] = lambda: None, flags: Sequence[str] = ("-m",)
    ) -> Any:
        """What the command gives `sys.exit`, or None."""
        self.launcher = PlayedLauncher(before_each)

        def instantiate(_: Any, **arguments: Any) -> Launcher:
            self.launcher.setup(**arguments)
            return self.launcher

        with self.monkeypatch.context() as patch:
            patch.setattr(Plugins, "instantiate_launcher", instantiate)
            if "-m" in flags:
                # Composes everything once more to find out what -m says.
                patch.setattr("hydra._internal.hydra.Hydra.get_mode", lambda *_, **__: None)
            patch.setattr("poslab.comparison.write_comparison", _no_comparison)
            self.capsys.readouterr()
            keys = {key_of(word) for word in words}
            end = typed(self.folder, *flags, *(word for word in SMALL if key_of(word) not in keys), *words)
        self.said = self.capsys.readouterr().out
        logging.captureWarnings(False)
        return end

    @property
    def ran(self) -> dict[str, TrainConfig]:
        """The jobs of the last command, by folder."""
        return self.launcher.ran

    @property
    def sweep(self) -> Path:
        """The folder of the only sweep."""
        (found,) = (self.folder / "outputs/sweeps").iterdir()
        return found

    def plan(self) -> list[dict[str, Any]]:
        return list(json.loads((self.sweep / "sweep.json").read_text()))


def _no_comparison(*_: Any) -> Any:
    raise RuntimeError("these jobs were not trained")
