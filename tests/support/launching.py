"""Which launchers are installed, and what their sweeps leave."""

import importlib.util
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.child_patches import WHEN_IT_TRAINS
from support.commands import only_sweep, start

MODULES = {"joblib": "joblib", "ray": "ray", "submitit_local": "submitit", "submitit_slurm": "submitit"}


EXTRAS = {"joblib": "joblib", "ray": "ray", "submitit_local": "slurm", "submitit_slurm": "slurm"}


def needs(launcher: str) -> pytest.MarkDecorator:
    module = MODULES.get(launcher)
    missing = module is not None and importlib.util.find_spec(module) is None
    return pytest.mark.skipif(
        missing, reason=f"{module} is not installed: pip install 'poslab[{EXTRAS.get(launcher)}]'"
    )


def results(cwd: Path) -> dict[str, dict[str, Any]]:
    """``result.json`` by the job's folder."""
    return {path.parent.name: json.loads(path.read_text()) for path in only_sweep(cwd).glob("*/result.json")}


QUICK = ("trainer.max_steps=20", "data.val_examples=16", "diagnostics=none", "logger=none")


PARALLEL = [pytest.param(name, marks=needs(name)) for name in ("joblib", "ray", "submitit_local")]


# In every process of a sweep: what a job does depends on its seed.
HOOK = (
    """
import os
import signal

class Awkward(Exception):
    def __init__(self, first, second):  # cannot be made again from its message
        super().__init__(f"{first} and {second}")

def patch(module):
    import torch
    token_loss = module.token_loss
    def hooked(*args):
        seed = torch.initial_seed()
        if seed == 3:
            raise Awkward("the disk", "the network")
        if seed == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return token_loss(*args) * (float("nan") if seed == 4 else 1)
    module.token_loss = hooked
"""
    + WHEN_IT_TRAINS
)


Swept = tuple[Path, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Swept]:
    """``swept(launcher)``: a grid of two jobs that finish, one that fails and one that diverges, run once."""
    done: dict[str, Swept] = {}

    def get(launcher: str) -> Swept:
        if launcher not in done:
            cwd = tmp_path_factory.mktemp(launcher)
            (cwd / "sitecustomize.py").write_text(HOOK)
            grid = ["-m", "seed=1,2,3,4", *QUICK, f"hydra/launcher={launcher}"]
            if launcher != "basic":
                # Neither may change a number: processes that make batches, and one that draws.
                grid += ["data.num_workers=2", "diagnostics=position_table"]
            done[launcher] = cwd, start(*grid, cwd=cwd, PYTHONPATH=str(cwd))
        return done[launcher]

    return get


def by_seed(cwd: Path) -> dict[int, dict[str, Any]]:
    return {result["seed"]: result for result in results(cwd).values()}
