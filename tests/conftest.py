"""Shared by all tests: shapes are checked, torch runs on one thread, and finished runs are made once."""

import gc
import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

SLOW = Path(__file__).parent / "slow"
# While a hooked module is imported, the hook looks for everybody's bytecode under a name of its own and compiles what
# it does not find, so the large libraries are imported before it is there.
LARGE_LIBRARIES = ("hydra", "lightning", "matplotlib.backends.backend_agg")

# A failed assertion in these shows its values, as one in a test does.
pytest.register_assert_rewrite("support")


def only_hands_out_tests(config: pytest.Config) -> bool:
    """Whether this is the process of pytest-xdist that has workers for the tests."""
    return bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    if only_hands_out_tests(config):
        return
    # Modules and tests stay until the end: looking for garbage among them takes a fifth of the collection.
    gc.disable()
    for library in LARGE_LIBRARIES:
        import_module(library)
    # Before the package is imported: every annotated function checks the shapes it is given. The hook finds the checker
    # as an attribute of its package.
    import_module("support.typechecker")
    import_module("jaxtyping").install_import_hook("poslab", "support.typechecker.check")
    for fixtures in ("shared_runs", "support.stopping"):
        config.pluginmanager.register(import_module(fixtures), fixtures)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(SLOW):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of one width, whatever terminal the tests are started in."""
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread for all that a test trains in this process, whatever the product would choose.

    The tests run side by side on all cores, where a second thread makes a large step up to fifty times slower.
    """
    import torch

    torch.set_num_threads(1)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    torch.manual_seed(0)


@pytest.fixture
def active_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of this Python's environment are found by their bare name, as after ``source .venv/bin/activate``."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the shape checks of the tests, so that the package's own ones answer."""
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a finished run by its overrides; each is trained once, by whichever worker needs it first."""
    from filelock import FileLock

    from support.runs import train

    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    made: dict[tuple[str, ...], Path] = {}

    def get(*overrides: str) -> Path:
        if overrides not in made:
            folder = shared / f"finished-{hashlib.sha256(repr(overrides).encode()).hexdigest()[:16]}"
            with FileLock(f"{folder}.lock"):
                if not (folder / "finished").exists():
                    shutil.rmtree(folder, ignore_errors=True)
                    train(folder / "run", *overrides)
                    (folder / "finished").touch()
            made[overrides] = folder / "run"
        return made[overrides]

    return get
