"""Runs of two real processes on one machine: one is lost, one diverges, all go on, and two that play two machines."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from poslab.data.module import SeedData
from poslab.evaluation.metrics import score_all
from poslab.trained import load
from support.child_patches import WHEN_IT_TRAINS
from support.commands import start
from support.paths import ROOT
from support.runs import train
from support.two_ranks import AS_ONE, assert_one_run, assert_same_curves

pytestmark = pytest.mark.process

# One rank, in one of its updates, does what it is told.
HOOK = f"""
import os, signal

def patch(module):
    real, calls = module.token_loss, iter(range(int(os.environ["POSLAB_TEST_UPDATE"])))

    def loss(*tensors):
        if os.environ.get("LOCAL_RANK", "0") != os.environ["POSLAB_TEST_RANK"] or next(calls, None) is not None:
            return real(*tensors)
        if os.environ["POSLAB_TEST_DO"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*tensors) * float("nan")

    module.token_loss = loss

{WHEN_IT_TRAINS}
"""
SHORT = ("trainer.accelerator=cpu", "data.steps_per_epoch=10", "data.val_examples=32", "model.dropout=0.1")
TWO = {
    "ddp": ("trainer=ddp", *SHORT),
    # Shared by all blocks, and a head that is the token table: neither is any block's own.
    "fsdp": ("trainer=fsdp", "model=transformer", "model.n_layers=2", "pos=t5", "model.tie_embeddings=true", *SHORT),
}


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hook")
    (folder / "sitecustomize.py").write_text(HOOK)
    return folder


def told(hook: Path, do: str, rank: int, update: int) -> dict[str, str]:
    """The environment of a run one of whose ranks does something in an update."""
    path = os.pathsep.join([str(hook), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path, "POSLAB_TEST_DO": do, "POSLAB_TEST_RANK": str(rank), "POSLAB_TEST_UPDATE": str(update)}


def result_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize("strategy", TWO)
def test_a_run_that_lost_a_rank_says_so_and_goes_on_as_if_nothing_had_happened(
    strategy: str, hook: Path, tmp_path: Path
) -> None:
    whole = start(*TWO[strategy], "hydra.run.dir=whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    lost = start(*TWO[strategy], "hydra.run.dir=lost", cwd=tmp_path, **told(hook, "kill", 1, 14))
    assert lost.returncode == 1
    assert re.fullmatch(r"error: LostRankError: rank 1 \(process \d+\) ended with exit code -9 .*\n", lost.stderr)
    result = result_of(tmp_path / "lost")
    assert result["status"] == "failed"
    assert re.fullmatch(r"LostRankError: rank 1 \(process \d+\) ended with exit code -9", result["error"])
    # A collective operation by itself would have waited for thirty minutes.
    written = [(tmp_path / "lost" / name).stat().st_mtime for name in ("checkpoints/last.ckpt", "result.json")]
    assert written[1] - written[0] < 90
    again = start(*TWO[strategy], "hydra.run.dir=lost", "resume=auto", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert "resume from last.ckpt, step 10" in again.stdout
    assert (tmp_path / "lost/metrics.csv").read_bytes() == (tmp_path / "whole/metrics.csv").read_bytes()
    one, other = (
        torch.load(tmp_path / name / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for name in ("whole", "lost")
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_no_rank_outlives_the_first_one(hook: Path, tmp_path: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *TWO["ddp"], "hydra.run.dir=run", "diagnostics=none", "logger=none"],
        cwd=tmp_path,
        env={**os.environ, **told(hook, "kill", 0, 5)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Its pipes are closed when the last process that holds them has ended.
    _, said = run.communicate(timeout=120)
    assert run.returncode == -9
    assert "Traceback" not in said
    assert result_of(tmp_path / "run")["status"] == "interrupted"


def test_a_rank_that_diverges_alone_ends_all_of_them(hook: Path, tmp_path: Path) -> None:
    done = start(*TWO["ddp"], "hydra.run.dir=run", "logger=none", cwd=tmp_path, **told(hook, "nan", 1, 3))
    assert done.returncode == 1
    assert re.fullmatch(r"error: train/loss is nan at step 3: the run has diverged; .*\n", done.stderr)
    assert result_of(tmp_path / "run")["status"] == "diverged"
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def on_two_machines(starter: str, *arguments: str, cwd: Path) -> list[subprocess.CompletedProcess[str]]:
    """What ``torchrun`` or ``srun`` starts on each of two machines, here both on this one."""
    port, running = str(free_port()), []
    for node in range(2):
        command, environment = [sys.executable], {**os.environ, "OMP_NUM_THREADS": "1"}
        if starter == "torchrun":
            command += ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", f"--node-rank={node}"]
            command += ["--master-addr=127.0.0.1", f"--master-port={port}"]
        else:
            environment |= {"SLURM_JOB_ID": "1234", "SLURM_JOB_NAME": "train", "SLURM_NTASKS": "2", "SLURM_NNODES": "2"}
            environment |= {"SLURM_NTASKS_PER_NODE": "1", "SLURM_LOCALID": "0"}
            environment |= {"SLURM_PROCID": str(node), "SLURM_NODEID": str(node)}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command += [str(ROOT / "train.py"), "trainer.devices=1", "trainer.num_nodes=2", *arguments]
        running.append(
            subprocess.Popen(
                command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    said = [process.communicate(timeout=240) for process in running]
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *texts)
        for process, texts in zip(running, said, strict=True)
    ]


@pytest.mark.parametrize(("starter", "strategy"), [("torchrun", "fsdp"), ("srun", "ddp")])
def test_two_machines_train_as_one_process(starter: str, strategy: str, tmp_path: Path) -> None:
    sizes = [each for each in TWO[strategy] if not each.startswith(("trainer", "data", "model.dropout"))]
    first, second = on_two_machines(
        starter,
        f"trainer={strategy}",
        "trainer.accelerator=cpu",
        *sizes,
        *AS_ONE,
        "hydra.run.dir=outputs/runs/slurm-1234",
        "resume=auto",
        cwd=tmp_path,
    )
    folder = tmp_path / "outputs/runs/slurm-1234"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert_one_run(folder, first)
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    one = train(tmp_path / "one", *sizes, *AS_ONE)
    # A shared model's gradient is in no place as a whole.
    assert_same_curves(one, folder, without="embedding_gradient" if strategy == "fsdp" else " ")
    job, task, model = load(folder, "best")
    wanted = load(one, "best").model.state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-3, atol=1e-4)
    job, task, model = load(folder)
    validation = SeedData(task, job.data, job.seed, model.vocab_size).validation
    means = score_all(model, list(validation)).means()
    assert means["loss"] == pytest.approx(result_of(folder)["metrics"]["val/loss"], rel=1e-5)
