"""Shared by all tests: shapes are checked, torch runs on one thread, and finished runs are made once."""

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Modules and tests stay until the end: looking for garbage among them takes a fifth of the collection.
gc.disable()

# A failed assertion in these shows its values, as one in a test does.
pytest.register_assert_rewrite("support")

# Before the package is imported: every annotated function checks the shapes it is given.
from jaxtyping import install_import_hook  # noqa: E402

import support.typechecker  # noqa: E402, F401  (the hook finds it as an attribute of its package)

install_import_hook("poslab", "support.typechecker.check")

# While a hooked module is imported, the hook looks for everybody's bytecode under a name of its own, and compiles what
# it does not find: the large libraries are imported before.
import hydra  # noqa: E402, F401
import jaxtyping  # noqa: E402
import lightning  # noqa: E402, F401
import matplotlib.backends.backend_agg  # noqa: E402, F401
import torch  # noqa: E402
from shared_runs import counts, server, undisturbed  # noqa: E402, F401

from support.runs import train  # noqa: E402
from support.stopping import whole  # noqa: E402, F401

SLOW = Path(__file__).parent / "slow"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(SLOW):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


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


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a finished run by its overrides; each is trained once, in this process."""
    made: dict[tuple[str, ...], Path] = {}

    def get(*overrides: str) -> Path:
        if overrides not in made:
            made[overrides] = train(tmp_path_factory.mktemp("run"), *overrides)
        return made[overrides]

    return get
