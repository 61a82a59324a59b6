"""Signals to real processes: before anything is made, and within an epoch."""

import os
import signal
from pathlib import Path

import pytest

from poslab.runs.result import stored_status
from support.child_patches import WHEN_IT_TRAINS
from support.commands import start
from support.runs import train
from support.stopping import TINY, assert_ends_before_anything_is_made, assert_same, content

AT_AN_UPDATE = """
import os
import signal

def patch(module):
    real, losses = module.token_loss, []
    def loss(*arguments):
        losses.append(1)
        if len(losses) == {update}:
            {act}
        return real(*arguments)
    module.token_loss = loss
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("act", "code", "step"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, 15),
        # What a scheduler does: everything that belongs to the job is told, the data workers too.
        ("os.killpg(0, signal.SIGTERM)", 143, 17),
        ("os.killpg(0, signal.SIGUSR1)", 143, 17),
        ("os.killpg(0, signal.SIGINT)", 130, 17),
    ],
    ids=["kill -9", "sigterm", "sigusr1", "ctrl-c"],
)
def test_a_real_process_that_is_stopped_within_an_epoch(act: str, code: int, step: int, tmp_path: Path) -> None:
    hook = AT_AN_UPDATE.format(update=17, act=act) + WHEN_IT_TRAINS
    (tmp_path / "sitecustomize.py").write_text(hook)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    settings = (*TINY, "data.num_workers=2", "trainer.checkpoint_every_n_steps=5", "hydra.run.dir=run")
    ended = start(*settings, cwd=tmp_path, own_group=True, PYTHONPATH=path)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
    assert content(tmp_path / "run")["global_step"] == step
    assert stored_status(tmp_path / "run") == "interrupted"
    train(tmp_path / "run", *settings[:-1], "resume=auto")
    assert_same(tmp_path / "run", train(tmp_path / "whole", *TINY))


@pytest.mark.process
@pytest.mark.parametrize("name", ["SIGINT", "SIGUSR1"])
def test_before_anything_is_made_it_ends_at_once(name: str, tmp_path: Path) -> None:
    assert_ends_before_anything_is_made(name, tmp_path)
