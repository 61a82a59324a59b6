"""A finished run is loaded from its folder alone."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from poslab.errors import ConfigError
from poslab.tasks.copy import CopyTask
from poslab.trained import load
from support.using_runs import ABLE


def test_load_gives_job_task_and_model(finished_runs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished_runs(*ABLE)
    job, task, model = load(run)
    assert job.optimizer.lr == 0.01
    assert isinstance(task, CopyTask)
    assert not model.training
    with torch.no_grad():
        assert model(torch.tensor([[7, 3, 9, 10, 7, 3]]))[0, 3:].argmax(-1).tolist() == [7, 3, 9]
    (run.parent / "outputs" / "runs").mkdir(parents=True, exist_ok=True)
    for age, name in ((2, "older"), (1, "newer"), (3, "oldest")):
        copy = shutil.copytree(run, run.parent / "outputs" / "runs" / name, dirs_exist_ok=True)
        os.utime(copy / "config.yaml", times=(1e9 - age, 1e9 - age))
        (copy / "checkpoints" / "last.ckpt").unlink(missing_ok=True)
    monkeypatch.chdir(run.parent)
    with pytest.raises(ConfigError, match=r"newer has no checkpoint 'last'; there are: best"):
        load("latest")
