"""How rank 0 starts, watches and ends the other ranks of its machine."""

import ast
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import train
from lightning.fabric.plugins.environments.lightning import LightningEnvironment

from poslab.errors import ConfigError, DivergedError, LostRankError, StoppedError
from poslab.system.ranks import PARENT
from poslab.system.threads import available_cores
from poslab.training import ranks
from poslab.training.ranks import changed_environment, local_ranks

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
SRUN = {"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "train"}


@pytest.fixture(autouse=True)
def _started_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, PARENT, "TORCHELASTIC_RUN_ID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)


class OtherRanks:
    """What runs in place of the other ranks of a run, and the processes that have been started."""

    def __init__(self) -> None:
        self.code = ""
        self.started: list[subprocess.Popen[bytes]] = []

    def command(self, folder: Path) -> list[str]:
        return [sys.executable, "-c", self.code]

    def start(self, *arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        self.started.append(subprocess.Popen(*arguments, **options))
        return self.started[-1]


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> OtherRanks:
    others = OtherRanks()
    monkeypatch.setattr(ranks, "same_command", others.command)
    monkeypatch.setattr(ranks, "subprocess", SimpleNamespace(Popen=others.start))
    return others


SAYS_WHO_IT_IS = f"""
import os, pathlib
names = {(*VARIABLES, PARENT)}
pathlib.Path("rank" + os.environ["LOCAL_RANK"]).write_text(repr({{name: os.environ.get(name) for name in names}}))
"""


def test_rank_0_starts_the_others_as_torchrun_would(
    others: OtherRanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    others.code = SAYS_WHO_IT_IS
    before = dict(os.environ)
    with local_ranks(tmp_path, 3, "ddp", pytest.fail):
        assert LightningEnvironment().creates_processes_externally
        own = dict(os.environ)
    assert dict(os.environ) == before
    assert (own["LOCAL_RANK"], own["NODE_RANK"], own["WORLD_SIZE"]) == ("0", "0", "3")
    # So that Lightning leaves torch's threads alone; another rank chooses its own.
    assert own["OMP_NUM_THREADS"] == str(available_cores())
    for rank in (1, 2):
        said = ast.literal_eval((tmp_path / f"rank{rank}").read_text())
        assert (said["LOCAL_RANK"], said["RANK"], said["OMP_NUM_THREADS"]) == (str(rank), None, None)
        assert said[PARENT] == str(os.getpid())
        for name in ("WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"):
            assert said[name] == own[name]
    assert not (tmp_path / "rank0").exists()


@pytest.mark.parametrize(
    ("environment", "strategy"),
    [
        ({}, "auto"),
        (TORCHRUN, "ddp"),
        (SRUN, "fsdp"),
        # A rank that rank 0 has started, and one that a person starts by hand.
        ({PARENT: "1", "LOCAL_RANK": "1"}, "ddp"),
        ({"LOCAL_RANK": "0"}, "ddp"),
    ],
)
def test_no_process_is_started_where_all_ranks_run(
    environment: dict[str, str], strategy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks, "end_with", lambda parent: None)
    monkeypatch.setattr(ranks, "subprocess", SimpleNamespace(Popen=pytest.fail))
    before = dict(os.environ)
    with local_ranks(tmp_path, 2, strategy, pytest.fail):
        assert {**os.environ, "OMP_NUM_THREADS": ""} == {**before, "OMP_NUM_THREADS": ""}
    assert dict(os.environ) == before


def test_variables_are_put_back_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "before")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(OSError), changed_environment({"MASTER_ADDR": "inside", "WORLD_SIZE": "2"}):  # noqa: PT011, PT012
        del os.environ["WORLD_SIZE"]
        raise OSError
    assert os.environ["MASTER_ADDR"] == "before"
    assert "WORLD_SIZE" not in os.environ


def test_a_lost_rank_is_named_instead_of_the_broken_connection(others: OtherRanks, tmp_path: Path) -> None:
    others.code = "raise SystemExit(3)"
    broken = RuntimeError("Connection closed by peer")
    with (
        pytest.raises(LostRankError, match=r"rank 1 \(process \d+\) ended with exit code 3") as caught,
        local_ranks(tmp_path, 2, "ddp", pytest.fail),
    ):
        raise broken
    assert caught.value.__cause__ is broken


@pytest.mark.parametrize(
    ("code", "error"),
    [
        # Of rank 0 alone, while the other one runs or has ended well.
        ("import time; time.sleep(60)", RuntimeError("the disk is full")),
        ("raise SystemExit(0)", RuntimeError("the disk is full")),
        # Every rank ends so.
        ("raise SystemExit(1)", DivergedError("train/loss is nan at step 3")),
        ("raise SystemExit(1)", ConfigError("the processes of this run differ")),
        ("raise SystemExit(143)", StoppedError(signal.SIGTERM)),
    ],
)
def test_an_error_of_rank_0_itself_stays_what_it_is(
    code: str, error: BaseException, others: OtherRanks, tmp_path: Path
) -> None:
    others.code = code
    began = time.monotonic()
    with pytest.raises(type(error)) as caught, local_ranks(tmp_path, 2, "ddp", pytest.fail):
        raise error
    assert caught.value is error
    # The other one has ended too, and it was not waited for long.
    assert all(process.poll() is not None for process in others.started)
    assert time.monotonic() - began < 30


def test_a_rank_that_does_not_end_is_ended_with_the_block(
    others: OtherRanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ranks, "PATIENCE_SECONDS", 0.2)
    others.code = "import time; time.sleep(60)"
    with local_ranks(tmp_path, 2, "ddp", pytest.fail):
        (other,) = others.started
        assert other.poll() is None
    assert other.poll() is not None


def test_rank_0_that_would_wait_without_end_says_so_and_ends(
    others: OtherRanks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As it does on GPUs, where a collective operation with a dead process neither ends nor raises."""
    ended, said = threading.Event(), []
    monkeypatch.setattr(ranks, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(ranks.os, "_exit", lambda code: (said.append(code), ended.set()))
    monkeypatch.setattr(ranks.logging, "shutdown", lambda: None)
    others.code = "raise SystemExit(3)"
    with local_ranks(tmp_path, 2, "ddp", said.append):
        assert ended.wait(30)
    reason, code = said
    assert reason.endswith("ended with exit code 3")
    assert code == 1


def test_one_rank_trains_as_without_a_strategy_and_leaves_nothing_in_its_process(tmp_path: Path) -> None:
    short = ("trainer.accelerator=cpu", "trainer.max_steps=4", "data.val_examples=8", "diagnostics=none", "logger=none")
    before = dict(os.environ)
    own = train(tmp_path / "ddp", "trainer=ddp", "trainer.devices=1", *short)
    assert (dict(os.environ), torch.distributed.is_initialized()) == (before, False)
    # Chosen by the run; Lightning would have set another number.
    assert torch.get_num_threads() == 1
    assert (own / "metrics.csv").read_bytes() == (train(tmp_path / "one", *short) / "metrics.csv").read_bytes()
