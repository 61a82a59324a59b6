"""A Ray cluster of two nodes on this machine: one is killed in the middle of a sweep, and nothing is missing."""

import csv
import importlib.util
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from poslab.runs.result import stored_status
from support.commands import only_sweep, start
from support.launching import results
from support.paths import ROOT
from support.processes import processes_of, wait_for
from support.runs import train

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'poslab[ray]'"
    ),
]

# Long enough that a node can be killed while its job is under way.
JOB = ("data.steps_per_epoch=40", "trainer.max_epochs=20", "data.val_examples=16", "diagnostics=none", "logger=none")


@dataclass
class Cluster:
    """Two nodes with one core each."""

    address: str
    environment: dict[str, str]
    second: "subprocess.Popen[bytes]"

    def kill_the_second(self) -> None:
        """As a machine dies: what schedules there and what works there, at once."""
        pids = [int(line.split()[0]) for line in processes_of(self.second.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def node(log: Path, environment: dict[str, str], *options: str) -> "subprocess.Popen[bytes]":
    """``ray start`` in a session of its own, when it says that it runs."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options]
    common = ["--num-cpus=1", "--node-ip-address=127.0.0.1", "--disable-usage-stats", "--block"]
    with open(log, "wb") as file:
        child = subprocess.Popen(
            [*command, *common, "--object-store-memory=80000000"],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    wait_for(lambda: child.poll() is not None or "Ray runtime started" in log.read_text(), 60)
    return child


def end_session(child: "subprocess.Popen[bytes]") -> None:
    """Everything that was started with this process, and nothing else."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for line in processes_of(child.pid):
            with_id = int(line.split()[0])
            try:
                os.kill(with_id, number)
            except ProcessLookupError:
                continue
        if wait_for(lambda: not processes_of(child.pid), 5):
            break
    child.wait()


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Short: Ray keeps sockets in it, whose paths have a limit.
    folder = tmp_path_factory.mktemp("r")
    port, client_port = free_port(), free_port()
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    head = node(
        folder / "head.log",
        environment,
        *(
            "--head",
            f"--port={port}",
            "--include-dashboard=false",
            f"--temp-dir={folder}",
            f"--ray-client-server-port={client_port}",
        ),
    )
    started = [head]
    try:
        assert head.poll() is None, (folder / "head.log").read_text()
        second = node(folder / "second.log", environment, f"--address=127.0.0.1:{port}")
        started.insert(0, second)
        assert second.poll() is None, (folder / "second.log").read_text()
        yield Cluster(f"127.0.0.1:{port}", environment, second)
    finally:
        for child in started:
            end_session(child)


def under_way(cwd: Path) -> int:
    """Jobs that have a checkpoint and have not ended."""
    checkpoints = cwd.glob("outputs/sweeps/*/*/checkpoints/last.ckpt")
    return sum(stored_status(path.parents[1]) == "interrupted" for path in checkpoints)


def test_the_jobs_of_a_node_that_dies_come_back(cluster: Cluster, tmp_path: Path):
    grid = ("-m", "seed=1,2,3,4,5,6", *JOB, "hydra/launcher=ray")
    child = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *grid, f"hydra.launcher.ray.init.address={cluster.address}"],
        cwd=tmp_path,
        env={**os.environ, **cluster.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        # One on each node, for each has one core.
        both = wait_for(lambda: child.poll() is not None or under_way(tmp_path) == 2, 90)
        cluster.kill_the_second()
        said, _ = child.communicate(timeout=120)
    finally:
        child.kill()
        child.communicate()
    assert both, said
    assert child.returncode == 0, said
    assert "6 jobs, launcher ray, workers 2 on 2 nodes" in said
    assert [result["status"] for result in results(tmp_path).values()] == ["completed"] * 6
    sweep = only_sweep(tmp_path)
    resumed = [path.parent for path in sweep.glob("*/train.log") if path.read_text().count(" run  ") > 1]
    assert len(resumed) == 1, "the job of the dead node was started twice, the others once"
    assert "resume from last.ckpt" in (resumed[0] / "train.log").read_text()
    seed = re.match(r"seed(\d)", resumed[0].name)
    assert seed is not None
    alone = train(tmp_path / "alone", f"seed={seed.group(1)}", *JOB)
    assert (resumed[0] / "metrics.csv").read_bytes() == (alone / "metrics.csv").read_bytes()
    with open(sweep / "comparison.csv", newline="") as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["completed"] * 6


def test_a_cluster_that_is_not_there_is_one_line_and_leaves_nothing(tmp_path: Path):
    began = time.monotonic()
    ended = start(
        *("-m", "seed=1,2", "hydra/launcher=ray", "hydra.launcher.ray.init.address=auto"),
        cwd=tmp_path,
        # Where no cluster of another person or test is found.
        RAY_TMPDIR=str(tmp_path),
        RAY_ADDRESS="",
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: hydra.launcher.ray.init.address=auto: ")
    assert time.monotonic() - began < 60
    assert list(tmp_path.iterdir()) == []
