"""Searches as a person runs them, whose jobs a launcher plays instead of training."""

import contextlib
import hashlib
import json
import logging
import math
import runpy
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import pytest
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher

from poslab.runs.result import stored_status
from poslab.sweeps.grid import job_label
from poslab.sweeps.plan import Job
from poslab.sweeps.search.options import open_storage
from poslab.sweeps.search.space import literal
from poslab.sweeps.sweep import Sweep
from support.paths import ROOT

QUICK = ("trainer.max_steps=5", "data.val_examples=32", "diagnostics=none")


OPTUNA = ("-m", "hydra/sweeper=optuna")


EARLY = "hydra.sweeper.sampler_options={n_startup_trials:3}"
"""TPE draws at random until it has this many results."""


RATE = "optimizer.lr=tag(log,interval(0.0005,0.05))"


SPACE = (RATE, "model.n_heads=choice(1,2,4,8)", "model.d_model=range(16,65,16)", "pos=learned,sinusoidal")


Played = Callable[[dict[str, Any]], dict[str, Any]]


def completed(loss: float, total: int = 1000, **metrics: float) -> dict[str, Any]:
    return {"status": "completed", "metrics": {"val/loss": loss, **metrics}, "parameters": {"total": total}}


def by_rate(settings: dict[str, Any]) -> dict[str, Any]:
    """Best at a rate of 0.01."""
    return completed(abs(math.log10(float(settings["optimizer.lr"])) + 2))


class PlayedLauncher(Launcher):
    """Runs no job: writes the result that ``play`` makes of its settings, as the job itself would."""

    def __init__(self, play: Played) -> None:
        self.play = play
        self.batches: list[list[dict[str, Any]]] = []

    def setup(self, **_: Any) -> None: ...

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
        self.batches.append([])
        for overrides in job_overrides:
            settings = {
                key.lstrip("+"): literal(value) for key, _, value in (text.partition("=") for text in overrides)
            }
            folder = Path(str(settings["hydra.sweep.dir"]).strip("'")) / settings["hydra.sweep.subdir"]
            folder.mkdir(exist_ok=True)
            self.batches[-1].append(settings)
            result = self.play(settings)
            (folder / "result.json").write_text(json.dumps(result))
        return []


def known_job(sweep: Sweep, overrides: list[str], varying: set[str]) -> Job:
    """A job as `Sweep` makes it, without the tenth of a second that Hydra takes to compose it."""
    if "model.n_heads=3" in overrides:
        return Job(overrides, reason="model.d_model=32 cannot be split into model.n_heads=3 equal heads")
    key = hashlib.sha256(repr(overrides).encode()).hexdigest()[:8]
    name = f"{job_label(overrides, varying)}-{key}"
    return Job(overrides, key, name, state=stored_status(sweep.folder / name) or "new")


@dataclass
class Console:
    """``python train.py`` in this process, with a launcher that plays."""

    cwd: Path
    monkeypatch: pytest.MonkeyPatch
    out: str = ""
    err: str = ""
    launchers: list[PlayedLauncher] = field(default_factory=list)

    def __call__(self, *arguments: str, play: Played = by_rate) -> int:
        """The exit code; what was said is in ``out`` and ``err``."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = self._run(arguments, play)
            for file in (out, err):
                file.seek(0)
            self.out, self.err = out.read(), err.read()
        return code

    def _run(self, arguments: Sequence[str], play: Played) -> int:
        self.launchers.append(PlayedLauncher(play))
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        with self.monkeypatch.context() as patch, contextlib.chdir(self.cwd):
            patch.setattr(Plugins, "instantiate_launcher", lambda *_, **__: self.launchers[-1])
            patch.setattr("poslab.comparison.write_comparison", lambda *_: None)
            patch.setattr(Sweep, "_job", known_job)
            patch.setattr(sys, "argv", ["train.py", *OPTUNA, *arguments])
            patch.setenv("HYDRA_FULL_ERROR", "0")
            try:
                runpy.run_path(str(ROOT / "train.py"), run_name="__main__")
            except SystemExit as end:
                # What a shell would see of it.
                if isinstance(end.code, str):
                    print(end.code, file=sys.stderr)  # noqa: T201
                    return 1
                return int(end.code or 0)
            finally:
                for handler in set(root.handlers) - set(handlers):
                    handler.close()
                root.handlers[:] = handlers
                root.setLevel(level)
        return 0

    @property
    def folder(self) -> Path:
        (found,) = (self.cwd / "outputs/sweeps").iterdir()
        return found

    def found(self) -> dict[str, Any]:
        return json.loads((self.folder / "search.json").read_text())

    def settings(self) -> list[dict[str, Any]]:
        return [trial["settings"] for trial in self.found()["trials"]]

    def jobs(self) -> list[dict[str, Any]]:
        return [job for launcher in self.launchers for batch in launcher.batches for job in batch]

    def study(self, storage: str | None = None) -> Any:
        return optuna.load_study(study_name=self.folder.name, storage=open_storage(storage, self.folder))


def another(console: Console, name: str) -> Console:
    """A second person in a folder of their own."""
    (console.cwd / name).mkdir()
    return Console(console.cwd / name, console.monkeypatch)
