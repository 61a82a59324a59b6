"""Runs of several processes, as far as one process can tell: who is who, what is refused, how a lost one is noticed."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser

from poslab.build import build_task
from poslab.cli import console as cli
from poslab.config.schema import checked
from poslab.data.stream import BatchStream, ReplicaStream
from poslab.errors import ConfigError
from poslab.preflight.ranks import check_ranks
from poslab.system import ranks
from poslab.system.devices import check_device
from poslab.tasks import Task
from poslab.tasks.base import IGNORED, Batch
from poslab.training.ranks import same_command
from poslab.training.strategies import SameRunCheck
from support.commands import start, typed
from support.configs import CHOICES, compose
from support.runs import train
from support.two_ranks import AS_ONE, assert_one_run, assert_same_curves

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2"}
SRUN = {"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "train"}


@pytest.fixture(autouse=True)
def _started_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "SLURM_NTASKS", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)


def put(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, 0),
        ({"LOCAL_RANK": "0"}, 0),
        ({"LOCAL_RANK": "1"}, 1),
        ({"RANK": "3"}, 3),
        # The second machine's first process.
        ({**TORCHRUN, "RANK": "1", "LOCAL_RANK": "0"}, 1),
        ({**SRUN, "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}, 1),
        ({**SRUN, "SLURM_PROCID": "0"}, 0),
        # A shell inside an allocation is no task of it.
        ({**SRUN, "SLURM_JOB_NAME": "bash", "SLURM_PROCID": "1"}, 0),
        # torchrun, started by srun once on every machine.
        ({**SRUN, **TORCHRUN, "SLURM_PROCID": "1", "RANK": "0"}, 0),
    ],
)
def test_the_number_of_a_rank(environment: dict[str, str], rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ranks.rank(environment) == rank
    put(monkeypatch, environment)
    assert ranks.is_rank_zero() is (rank == 0)


NAMED, BY_TIME = "outputs/runs/mine", "outputs/runs/${poslab_run_name:${seed}}"


@pytest.mark.parametrize(
    ("environment", "overrides", "folder", "reason"),
    [
        (TORCHRUN, "trainer=ddp", NAMED, None),
        (SRUN, "trainer=fsdp", NAMED, None),
        (TORCHRUN, "trainer=ddp trainer.devices=1 trainer.num_nodes=2", NAMED, None),
        ({}, "trainer=ddp", BY_TIME, None),
        # Ranks that the first one started are told its folder.
        ({**TORCHRUN, ranks.PARENT: "1"}, "trainer=ddp trainer.devices=4", BY_TIME, None),
        ({**TORCHRUN, "WORLD_SIZE": "1"}, "trainer=cpu", BY_TIME, None),
        (TORCHRUN, "trainer=ddp", BY_TIME, r"torchrun started 2 processes.*hydra\.run\.dir="),
        (SRUN, "trainer=ddp", BY_TIME, r"srun started 2 processes.*hydra\.run\.dir="),
        (SRUN, "trainer=cpu", NAMED, r"srun started 2 processes, but trainer\.devices=1.*use trainer=ddp"),
        (TORCHRUN, "trainer=ddp trainer.devices=4", NAMED, r"2 processes.*trainer\.devices=4.* are 4"),
        ({}, "trainer=ddp trainer.num_nodes=2", NAMED, r"trainer\.num_nodes=2, but this process was started alone"),
    ],
)
def test_processes_that_do_not_fit_the_job_are_refused(
    environment: dict[str, str],
    overrides: str,
    folder: str,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put(monkeypatch, environment)
    job = checked(compose(*overrides.split()))
    if reason is None:
        check_ranks(job, folder)
    else:
        with pytest.raises(ConfigError, match=reason):
            check_ranks(job, folder)


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_from_outside_refuse_alike_and_one_of_them_speaks(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would wait for ever for one that has been refused."""
    put(monkeypatch, {**TORCHRUN, "RANK": str(rank), "LOCAL_RANK": "0"})
    for wrong in ("data.batch_size=15", "task.n_symbols=1", "hydra.job.name=train"):
        said = typed(tmp_path, "trainer=ddp", wrong)
        assert said == 1 if rank else said.startswith("error: "), wrong
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("launcher", [(), ("hydra/launcher=joblib",)], ids=["basic", "joblib"])
def test_a_sweep_of_jobs_that_start_processes_is_refused_before_anything_is_made(
    strategy: str, launcher: tuple[str, ...], tmp_path: Path
) -> None:
    said = typed(tmp_path, "-m", f"trainer={strategy}", "seed=1,2", *launcher)
    assert said.startswith("error: 2 of 2 combinations cannot be run")
    assert f"trainer={strategy} starts its processes by typing the command again" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("environment", [TORCHRUN, SRUN])
def test_a_sweep_is_started_once(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, environment)
    said = typed(tmp_path, "-m", "seed=1,2")
    assert "started 2 processes, and each would run the whole sweep" in said
    assert list(tmp_path.iterdir()) == []


def test_more_devices_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 2)
    check_device("auto", 2)
    check_device("cpu", 4)
    with pytest.raises(ConfigError, match=r"trainer\.devices=4, but torch sees 2 on this machine; use at most 2"):
        check_device("auto", 4)


@pytest.mark.parametrize("task", [choice for group, choice in CHOICES if group == "task"])
def test_every_row_of_a_batch_counts_the_same_number_of_targets(task: str) -> None:
    """So that the mean of the ranks' mean losses is the mean loss of the batch."""
    built = build_task(checked(compose(f"task={task}")))
    for step in range(20):
        counted = (built.sample(np.random.default_rng(step), 8).targets != IGNORED).sum(axis=1)
        assert counted.min() == counted.max()


@pytest.mark.usefixtures("as_shipped")
def test_a_task_whose_rows_do_not_is_refused_on_several_devices() -> None:
    class Uneven:
        lengths = (1,)

        def sample(self, rng: np.random.Generator, batch_size: int, length: int | None = None) -> Batch:
            targets = np.zeros((batch_size, 3), dtype=np.int64)
            targets[0] = IGNORED
            return Batch(np.zeros_like(targets), targets)

    task: Task = Uneven()  # type: ignore[assignment]
    streams = [BatchStream(task, 0, "train", 4, 5)]
    ReplicaStream(streams)[0]
    with pytest.raises(
        ValueError, match=r"Uneven made a batch whose rows have different numbers of targets, 3 to 6 a rank"
    ):
        ReplicaStream(streams, rank=1, world_size=2)[0]


@pytest.mark.parametrize("name", ["run", "with space", "it's", "a=b,c", 'dou"ble', "back\\slash"])
def test_another_rank_is_told_the_first_one_s_folder(name: str, tmp_path: Path) -> None:
    *_, folder, _ = same_command(tmp_path / name)
    override = OverridesParser.create().parse_override(folder)
    assert (override.key_or_group, override.value()) == ("hydra.run.dir", str(tmp_path / name))


def test_the_log_is_the_first_rank_s_and_another_one_s_errors_have_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import logging

    def say(**environment: str) -> None:
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            log = logging.Logger("one of the run's")
            log.handlers = [cli.LogFile(str(tmp_path / "train.log"), delay=True), cli.ConsoleHandler()]
            log.info("step 1")
            log.warning("trouble")
            log.handlers[0].close()

    say()
    say(RANK="1")
    assert (tmp_path / "train.log").read_text() == "step 1\ntrouble\n"
    assert (tmp_path / "train.rank1.log").read_text() == "trouble\n"
    assert capsys.readouterr().out == "step 1\ntrouble\n"


@pytest.mark.usefixtures("as_shipped")
def test_ranks_that_were_given_different_runs_do_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(runs: list[Any], own: Any) -> None:
        runs[:] = [own, {**own, "its folder": "elsewhere"}]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    agreement = SameRunCheck({"the job": "abc", "its folder": "here"})
    agreement.setup(SimpleNamespace(world_size=1), None, "fit")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="its folder is here for rank 0 and elsewhere for rank 1"):
        agreement.setup(SimpleNamespace(world_size=2), None, "fit")  # type: ignore[arg-type]


@pytest.mark.process
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    done = start("trainer=ddp", "trainer.accelerator=cpu", *AS_ONE, "hydra.run.dir=two ranks", cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["two ranks"]
    assert_one_run(tmp_path / "two ranks", done)
    assert_same_curves(train(tmp_path / "one", *AS_ONE), tmp_path / "two ranks")
    one, two = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two ranks"))
    assert (two["status"], two["batches_by_length"]) == ("completed", one["batches_by_length"])


def test_a_job_that_is_put_back_in_the_queue_goes_on_in_the_folder_of_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe of docs/multi_node.md; a run that began again in that folder would end with the same numbers."""
    from poslab.training import learner as module

    updates, real = iter(range(25)), module.token_loss

    def interrupted(*tensors: torch.Tensor) -> torch.Tensor:
        if next(updates, None) is None:
            raise KeyboardInterrupt
        return real(*tensors)

    command = ("hydra.run.dir=outputs/runs/slurm-77", "resume=auto", "data.steps_per_epoch=20", "trainer.max_epochs=2")
    command += ("data.val_examples=32", "diagnostics=none", "logger=none")
    with monkeypatch.context() as patch:
        patch.setattr(module, "token_loss", interrupted)
        assert typed(tmp_path, *command) == 130
    trained: list[int] = []
    monkeypatch.setattr(module, "token_loss", lambda *tensors: (trained.append(1), real(*tensors))[1])
    assert typed(tmp_path, *command) is None
    assert [path.name for path in (tmp_path / "outputs/runs").iterdir()] == ["slurm-77"]
    assert json.loads((tmp_path / "outputs/runs/slurm-77/result.json").read_text())["status"] == "completed"
    # Its last checkpoint was after 20 of 40 updates.
    assert 15 <= len(trained) <= 20
