"""Workers on this machine: joblib's own processes, one thread each."""

import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from multiprocessing import current_process, resource_tracker, set_start_method
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn

from poslab.errors import ConfigError
from poslab.launchers.pool import GRACE_SECONDS, Call, Pool, ctrl_c_afterwards, load
from poslab.system.devices import VISIBLE, visible_devices


def n_workers(n_jobs: int, cores: int) -> int:
    """The number of workers: ``n_jobs``, or one for each core.

    Raises:
        ConfigError: ``n_jobs`` is neither -1 nor above 0.
    """
    if n_jobs == -1:
        return cores
    if n_jobs < 1:
        raise ConfigError(f"hydra.launcher.n_jobs={n_jobs} must be at least 1, or -1 for one for each core")
    return n_jobs


def become_worker(sweep: int, device: str | None) -> None:
    """Make this process a worker of a sweep: it answers the sweep's signals, uses one core and ends with the sweep.

    Args:
        sweep: id of the sweep's process.
        device: the GPU that the jobs of this worker see, as ``CUDA_VISIBLE_DEVICES`` names it; None for all.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, interrupt)
    # The workers share the cores; trainer.threads as a number overrides this.
    os.environ["OMP_NUM_THREADS"] = "1"
    if device is not None:
        os.environ[VISIBLE] = device
    parent = os.getppid()

    def end_with_the_sweep() -> None:
        # A job without its sweep must not write into the folder of the job that replaces it.
        while os.getppid() == parent and is_alive(sweep):
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=end_with_the_sweep, daemon=True).start()


def is_alive(process: int) -> bool:
    """Whether a process is running; one that has ended and waits for its parent is not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    state = Path(f"/proc/{process}/stat")
    return not (state.exists() and b") Z " in state.read_bytes())


def become_joblib_worker(sweep: int, devices: Sequence[str]) -> None:
    """Make this process a worker, with the GPU that belongs to its number."""
    # Its name ends in its number: LokyProcess-3.
    index = int(current_process().name.rpartition("-")[2] or 1) - 1
    become_worker(sweep, devices[index % len(devices)] if devices else None)
    # Joblib leaves its own start method set, which cannot start the data workers of a job.
    set_start_method(None, force=True)


class JoblibPool(Pool["Future[JobReturn]"]):
    """Processes that run one job after the other, by joblib's executor, which does not fork this process."""

    tries_again = True

    def __init__(self, n_jobs: int) -> None:
        self.loky = load("joblib.externals.loky", "hydra/launcher=joblib", "joblib")
        self.capacity = n_workers(n_jobs, self.loky.cpu_count())
        self.executor: Any = None
        self.size = 0

    def prepare(self, n_jobs: int, folder: Path) -> None:
        self.size = max(self.size, min(n_jobs, int(self.capacity)))

    def start(self, calls: Sequence[Call]) -> list["Future[JobReturn]"]:
        # A new one if a worker died, which ends the others, or if there are more jobs than before.
        self.executor = self.loky.get_reusable_executor(
            max_workers=self.size,
            timeout=None,
            initializer=become_joblib_worker,
            initargs=(os.getpid(), visible_devices()),
            env={"OMP_NUM_THREADS": "1"},
        )
        # Started here, because its start unblocks Ctrl-C again.
        resource_tracker.ensure_running()
        with ctrl_c_afterwards():
            return [self.executor.submit(call) for call in calls]

    def ended(self, handles: Sequence["Future[JobReturn]"]) -> list["Future[JobReturn]"]:
        return list(wait(handles, timeout=1, return_when=FIRST_COMPLETED).done)

    def result(self, handle: "Future[JobReturn]") -> JobReturn:
        return handle.result()

    def stop(self, handles: Sequence["Future[JobReturn]"]) -> None:
        if self.executor is None:
            return
        try:
            for process in self.executor._processes.copy():
                send(process, signal.SIGTERM)
            wait(handles, timeout=GRACE_SECONDS)
        finally:
            self.executor.shutdown(kill_workers=True)


def send(process: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(process, number)
