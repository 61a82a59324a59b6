"""Shared by all tests: shapes are checked, torch runs on one thread, and finished runs are made once."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

# Before the package is imported: every annotated function checks the shapes it is given.
from jaxtyping import install_import_hook

install_import_hook("poslab", "typechecker.check")

import jaxtyping  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from shared_runs import counts, server, undisturbed  # noqa: E402, F401

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf"


# Whole sweeps in child processes, and a browser: make test-slow.
SLOW = {
    "test_search.py",
    "test_launchers.py",
    "test_launcher_ray.py",
    "test_sweeps.py",
    "test_sweep_resume.py",
    "test_several_processes.py",
    "test_comparison_browser.py",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def active_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this Python's environment are found by their bare name, as after ``source .venv/bin/activate``."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the shape checks of the tests, so that the package's own ones answer."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def start(*arguments: str, cwd: Path, own_group: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
    """``python train.py`` with these arguments, the way a person types it, in a folder of its own."""
    return subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        # What it and all that it starts are sent does not reach the tests.
        start_new_session=own_group,
    )


# For a sitecustomize.py that has defined `patch`: changes the module of the training loss, once a process loads it.
WHEN_IT_TRAINS = """
import importlib.util
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "poslab.training.learner":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (execute(module), patch(module))
        return spec

sys.meta_path.insert(0, Finder())
"""


def only_sweep(cwd: Path) -> Path:
    """The folder of the one sweep that was started in this folder."""
    (found,) = (cwd / "outputs/sweeps").iterdir()
    return found


def compose(*overrides: str):
    """The configuration that ``train.py`` would get."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    import poslab.config.schema  # noqa: F401  (registers the schema)

    with initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra_compose("train", overrides=list(overrides))


def train(folder: Path, *overrides: str) -> Path:
    """Train in this process; returns the folder."""
    from poslab.experiment.run import run

    run(compose(*overrides), folder, overrides)
    return folder


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a finished run by its overrides; each is trained once, in this process."""
    made: dict[tuple[str, ...], Path] = {}

    def get(*overrides: str) -> Path:
        if overrides not in made:
            made[overrides] = train(tmp_path_factory.mktemp("run"), *overrides)
        return made[overrides]

    return get
