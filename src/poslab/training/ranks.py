"""Starts the other ranks of a run on one machine, watches them, and ends them.

`torchrun` and `srun` start every rank of a run. Without them rank 0 starts the others, here, and sets the variables
that such a launcher sets, so that Lightning finds its ranks started and starts none.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment

from poslab.config.overrides import override
from poslab.errors import ConfigError, DivergedError, LostRankError
from poslab.system.ranks import PARENT, started_by_first_rank, starts_other_ranks
from poslab.system.shell import typed_path
from poslab.system.threads import available_cores

PATIENCE_SECONDS = 10.0
"""How long a rank waits for the others to end, and after one of them is lost: its last message may be on its way."""
NOTICE_SECONDS = 2.0
"""How long rank 0 waits after an error for a process that has ended: its connection breaks before its exit is known."""


@contextmanager
def local_ranks(folder: Path, devices: int, strategy: str, on_lost: Callable[[str], None]) -> Iterator[None]:
    """Run the block as one rank of a run; a rank 0 that was started alone starts the others, and ends them afterwards.

    The Trainer has to be built in the block: Lightning reads the variables then. After the block no rank can reach
    another one. Where ``strategy`` is ``auto``, there is one process and nothing to do.

    Args:
        folder: of the run, the same for all ranks.
        devices: ranks on this machine.
        strategy: ``trainer.strategy``.
        on_lost: called with the reason where a rank is lost and the block neither ends nor fails within
            `PATIENCE_SECONDS`; then this process exits with code 1.

    Raises:
        LostRankError: the block failed and another rank has ended; names it and its exit code.
    """
    if strategy == "auto":
        yield
        return
    # Lightning's launcher chooses the number of torch's threads where this is not set; the run has chosen it.
    variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(available_cores()))}
    if starts_other_ranks():
        meeting = meeting_point(devices)
        with other_ranks(same_command(folder), meeting, on_lost), changed_environment(meeting | variables):
            yield
            leave_group()
        return
    if started_by_first_rank():
        end_with(int(os.environ[PARENT]))
    with changed_environment(variables):
        yield
        leave_group()


def meeting_point(devices: int) -> dict[str, str]:
    """The variables by which the ranks of one machine find each other, as rank 0 needs them."""
    chosen = LightningEnvironment()
    return {
        "MASTER_ADDR": chosen.main_address,
        "MASTER_PORT": str(chosen.main_port),
        "NODE_RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(devices),
    }


def same_command(folder: Path) -> Sequence[str]:
    """The command that started this process, for another rank of the same run."""
    hydra = [override("hydra.run.dir", str(folder.absolute())), "hydra.output_subdir=null"]
    return [sys.executable, str(typed_path(sys.argv[0]).absolute()), *sys.argv[1:], *hydra]


@contextmanager
def changed_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment inside the block, and put back what was there before."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def leave_group() -> None:
    """Close this rank's connections: closing those between GPUs waits for the other ranks, so all have to do it now."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@contextmanager
def other_ranks(command: Sequence[str], meeting: Mapping[str, str], on_lost: Callable[[str], None]) -> Iterator[None]:
    """Start ranks 1 to N - 1 of this machine, watch them while the block runs, and end them after it."""
    ranks = Processes()
    over = threading.Event()
    try:
        for rank in range(1, int(meeting["WORLD_SIZE"])):
            ranks.start(command, {**os.environ, **meeting, "LOCAL_RANK": str(rank), PARENT: str(os.getpid())})
        threading.Thread(target=watch, args=(ranks, over, on_lost), daemon=True).start()
        yield
        over.set()
        ranks.wait(PATIENCE_SECONDS)
    except BaseException as error:
        over.set()
        ranks.wait(NOTICE_SECONDS, until_lost=True)
        lost = ranks.lost()
        # Ranks that diverge, are refused or are told to stop all come to that end, each by itself.
        if lost is None or isinstance(error, (DivergedError, ConfigError)) or not isinstance(error, Exception):
            raise
        raise LostRankError(lost) from error
    finally:
        over.set()
        ranks.kill()


class Processes:
    """The processes that rank 0 has started, in the order of their ranks from 1 on."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the next one."""
        self._started.append(subprocess.Popen(command, env=environment, cwd=typed_path(".")))

    def lost(self) -> str | None:
        """Which of them has failed, if any, and how."""
        for rank, process in enumerate(self._started, start=1):
            if process.poll():
                return f"rank {rank} (process {process.pid}) ended with exit code {process.returncode}"
        return None

    def wait(self, seconds: float, until_lost: bool = False) -> None:
        """Wait until all of them have ended, or one has failed, or the time is over."""
        deadline = time.monotonic() + seconds
        while any(process.poll() is None for process in self._started) and time.monotonic() < deadline:
            if until_lost and self.lost() is not None:
                break
            time.sleep(0.05)

    def kill(self) -> None:
        """End those that have not ended."""
        for process in self._started:
            process.kill()
        for process in self._started:
            process.wait()


def watch(ranks: Processes, over: threading.Event, on_lost: Callable[[str], None]) -> None:
    """End this process where another rank is lost and ``over`` is not set soon after it."""
    while not over.wait(0.5):
        lost = ranks.lost()
        if lost is not None and not over.wait(PATIENCE_SECONDS):
            # The main thread waits in a collective operation that will never end, and no exception reaches it there.
            ranks.kill()
            try:
                on_lost(lost)
                logging.shutdown()
            finally:
                os._exit(1)


def end_with(parent: int) -> None:
    """End this process once rank 0 has ended; otherwise it might wait for it without end."""

    def watch_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        time.sleep(PATIENCE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch_parent, daemon=True).start()
