"""What a whole process of ``train.py`` imports until its first step, and that its imports are frozen at its end."""

import os
import subprocess

import pytest

from support.child_patches import WHEN_IT_TRAINS
from support.commands import start

pytestmark = pytest.mark.process
# What a default run has no use for before its first step; each takes its time to load.
NEEDLESS = (
    "IPython",
    "joblib",
    "jsonargparse",
    "optuna",
    "pandas",
    "ray",
    "sklearn",
    "submitit",
    "tensorboard.program",
    "tensorflow",
    "torchvision",
    # Lightning's own imports bring torch._dynamo and, where it is installed, SciPy; see pyproject.toml.
    "scipy",
)
NOTES = """
import atexit
import gc
import os
import sys

atexit.register(lambda: print("at exit", gc.get_freeze_count() > 100_000, gc.isenabled()))

def patch(module):
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def note(*_):
        handle.remove()
        with open(os.environ["NOTE_MODULES"], "w") as file:
            file.write("\\n".join(sys.modules))

    handle = register_optimizer_step_post_hook(note)
"""


@pytest.fixture(scope="module")
def whole_process(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The process, and the modules that it had loaded after its first step."""
    folder = tmp_path_factory.mktemp("process")
    (folder / "sitecustomize.py").write_text(NOTES + WHEN_IT_TRAINS)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    note = folder / "modules.txt"
    ended = start("trainer.max_steps=2", cwd=folder, PYTHONPATH=path, NOTE_MODULES=str(note))
    assert ended.returncode == 0, ended.stderr
    return ended, note.read_text().split()


def test_what_the_first_step_does_not_need_is_not_imported(
    whole_process: tuple[subprocess.CompletedProcess[str], list[str]],
) -> None:
    _, loaded = whole_process
    assert "lightning.pytorch" in loaded
    assert [name for name in loaded if name in NEEDLESS] == []


def test_a_run_trains_with_the_collector_on_and_the_imports_frozen(
    whole_process: tuple[subprocess.CompletedProcess[str], list[str]],
) -> None:
    ended, _ = whole_process
    assert ended.stdout.endswith("at exit True True\n")
