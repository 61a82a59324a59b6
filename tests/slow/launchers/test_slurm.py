"""Jobs under SLURM, played by scripts."""

import os
import re
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from poslab import launchers
from poslab.errors import ConfigError
from support.commands import only_sweep, start
from support.launching import QUICK, by_seed, needs, results
from support.runs import train


@needs("submitit_slurm")
def test_a_gpu_that_slurm_is_not_asked_for_makes_a_job_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake_slurm(tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match=r"SLURM is asked for none; set hydra.launcher.gpus_per_node=1"):
        launchers.SubmititPool("slurm", cpus_per_task=1).check_devices("gpu", 1)
    for asked in ({"gpus_per_node": 1}, {"gres": "gpu:1"}, {"additional_parameters": {"gpus-per-task": 1}}):
        launchers.SubmititPool("slurm", **asked).check_devices("gpu", 1)


SBATCH = """#!/bin/bash
# Runs every task of the array at once.
cp "$1" "$FAKE_SLURM/submitted.sh"
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\)%.*/\\1/p' "$1")
for task in $(seq 0 "$last"); do "$FAKE_SLURM/bin/run_task" "$task" > /dev/null 2>&1 & done
echo "Submitted batch job 7"
"""


RUN_TASK = """#!/bin/bash
export SLURM_JOB_ID=$((70 + $1)) SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=$1 SLURM_NTASKS=1 SLURM_PROCID=0
export SLURM_LOCALID=0 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_JOB_NODELIST=localhost SLURM_JOB_NAME=poslab
bash "$FAKE_SLURM/submitted.sh" > "$FAKE_SLURM/task$1.log" 2>&1
"""


SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do [[ $1 == --unbuffered ]] && shift || shift 2; done
echo $$ > "$FAKE_SLURM/pid$SLURM_ARRAY_TASK_ID"
exec "$@"
"""


SACCT = """#!/bin/bash
echo 'JobID|State|NodeList'
for task in 0 1; do echo "7_$task|RUNNING|localhost"; done
"""


SCONTROL = """#!/bin/bash
# requeue 7_0: when this process has ended, the same again.
echo "$@" >> "$FAKE_SLURM/scontrol.log"
job=$PPID
(while kill -0 "$job" 2> /dev/null; do sleep 0.1; done; exec "$FAKE_SLURM/bin/run_task" "${2#7_}") > /dev/null 2>&1 &
"""


SCANCEL = """#!/bin/bash
echo "$@" >> "$FAKE_SLURM/scancel.log"
kill -TERM $(cat "$FAKE_SLURM"/pid*)
"""


def fake_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scontrol": SCONTROL, "scancel": SCANCEL}
    bin_folder = folder / "slurm" / "bin"
    bin_folder.mkdir(parents=True)
    for name, text in {**programs, "run_task": RUN_TASK}.items():
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("FAKE_SLURM", str(folder / "slurm"))
    monkeypatch.setenv("PATH", f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "slurm"


@pytest.mark.process
@needs("submitit_slurm")
def test_a_job_that_slurm_preempts_goes_on_in_the_same_folder(
    begin: Callable[..., subprocess.Popen[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    slurm = fake_slurm(tmp_path, monkeypatch)
    job = (
        "data.steps_per_epoch=40",
        "trainer.max_epochs=25",
        "data.val_examples=16",
        "diagnostics=none",
        "logger=none",
    )
    options = ("hydra.launcher.partition=small", "hydra.launcher.gpus_per_node=1")
    more = "+hydra.launcher.additional_parameters.mail-type=END"
    child = begin("seed=1,2", *job, "hydra/launcher=submitit_slurm", *options, more, under_way=2)
    os.kill(int((slurm / "pid0").read_text()), signal.SIGUSR2)
    said, _ = child.communicate(timeout=120)
    assert child.returncode == 0, said
    assert (slurm / "scontrol.log").read_text() == "requeue 7_0\n"
    log = next(only_sweep(tmp_path).glob("seed1-*/train.log")).read_text()
    assert "resume from last.ckpt, step" in log
    assert {seed: result["status"] for seed, result in by_seed(tmp_path).items()} == {1: "completed", 2: "completed"}
    monkeypatch.undo()  # Lightning looks for SLURM's programs
    alone = train(tmp_path / "alone", "seed=1", *job)
    (preempted,) = only_sweep(tmp_path).glob("seed1-*/metrics.csv")
    assert preempted.read_bytes() == (alone / "metrics.csv").read_bytes()
    settings = dict(re.findall(r"#SBATCH --([a-z-]+)=(\S+)", (slurm / "submitted.sh").read_text()))
    wanted = {
        "array": "0-1%2",
        "cpus-per-task": "1",
        "gpus-per-node": "1",
        "job-name": "poslab",
        "mail-type": "END",
        "mem": "4GB",
        "partition": "small",
        "signal": "USR2@120",
        "time": "60",
    }
    assert {name: settings.get(name) for name in wanted} == wanted
    assert settings["output"].startswith(str(only_sweep(tmp_path) / ".submitit"))


@pytest.mark.process
@needs("submitit_slurm")
def test_slurm_s_settings_can_be_tried_without_slurm(tmp_path: Path):
    ended = start(
        *("-m", "seed=1,2", *QUICK, "hydra/launcher=submitit_slurm", "hydra.launcher.cluster=debug"), cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    assert [result["status"] for result in results(tmp_path).values()] == ["completed"] * 2
