"""Which GPU a job gets, that it is checked where the job runs, and what the record calls it."""

import json
from pathlib import Path

import pytest
import torch

from poslab.errors import ConfigError
from poslab.experiment.run import run
from poslab.system.devices import device_name, visible_devices
from support.configs import compose
from support.runs import train


@pytest.mark.parametrize(("named", "wanted"), [("0,2", ["0", "2"]), ("", []), ("GPU-3f,GPU-8a", ["GPU-3f", "GPU-8a"])])
def test_the_gpus_of_this_process(named: str, wanted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_devices() == wanted


def test_the_gpus_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    assert visible_devices() == ["0", "1", "2"]


def test_two_gpus_of_one_kind_have_two_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: "NVIDIA H200")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert device_name(torch.device("cuda", 0)) == "NVIDIA H200 (GPU 5)"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert device_name(torch.device("cuda", 1)) == "NVIDIA H200 (GPU 1)"
    assert device_name(torch.device("cpu")) == "cpu"


def test_a_job_says_what_it_computed_on(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", "trainer=cpu", "trainer.max_steps=1", "diagnostics=none", "logger=none")
    assert json.loads((folder / "result.json").read_text())["device"] == "cpu"


def test_a_gpu_that_is_hidden_where_the_job_runs_is_said_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep's process saw one; Ray or a scheduler has hidden it from the worker."""
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError):
        run(compose("trainer=gpu", "diagnostics=none", "logger=none"), tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["device"]) == ("failed", None)
    assert result["error"] == (
        "ConfigError: trainer.accelerator=gpu, but torch sees no GPU on this machine (CUDA_VISIBLE_DEVICES=''); use "
        "trainer=auto or trainer=cpu"
    )
