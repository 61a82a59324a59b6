"""A finished run is loaded from its folder alone."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import poslab.trained
from poslab.errors import ConfigError
from poslab.tasks.copy import CopyTask
from poslab.trained import load
from support.limits import in_time
from support.strange_files import LONG, UNREADABLE
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


@pytest.mark.parametrize(
    "name",
    ["pipe for a config", "zeros for a config", "a config without end", "laughs", "deep config", "not UTF-8", "number"],
)
def test_a_configuration_that_cannot_be_read_is_refused_in_one_line(
    name: str, finished_runs: Callable[..., Path], tmp_path: Path
) -> None:
    run = shutil.copytree(finished_runs(*ABLE), tmp_path / "run")
    long = lambda folder: (folder / "config.yaml").write_text(f"seed: {LONG}"), "it has a number of 5000 digits"
    act, said = UNREADABLE.get(name, long)
    act(run)
    if "not a regular file" in said or not (run / "config.yaml").is_file():
        said = "holds no run"
    with in_time(30), pytest.raises(ConfigError, match=re.escape(said)) as refused:
        load(run)
    assert "\n" not in str(refused.value)


def test_a_model_is_built_only_if_the_checkpoint_is_of_that_size(
    finished_runs: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(finished_runs(*ABLE), tmp_path / "run")
    file = run / "config.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("d_model: 32", "d_model: 20000"), encoding="utf-8")
    monkeypatch.setattr(poslab.trained, "build_model", lambda *given: pytest.fail("built"))
    with pytest.raises(ConfigError, match=r"it was trained with model.d_model=32, and config.yaml says 20000"):
        load(run)


def test_a_parameter_that_stands_for_more_than_its_file_is_not_copied(
    finished_runs: Callable[..., Path], tmp_path: Path
) -> None:
    run = shutil.copytree(finished_runs(*ABLE), tmp_path / "run")
    path = run / "checkpoints/last.ckpt"
    content = torch.load(path, weights_only=True)
    key = "model.head.weight"
    content["state_dict"][key] = torch.zeros(1, dtype=torch.float16).expand(2**45)
    torch.save(content, path)
    with pytest.raises(ConfigError, match=r"does not belong to the run .* size mismatch for head.weight"):
        load(run)
