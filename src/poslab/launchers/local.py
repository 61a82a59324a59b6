"""Workers on this machine: joblib's own processes, one thread each."""

import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import current_process, resource_tracker, set_start_method
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn

from poslab.errors import ConfigError, LostJobError
from poslab.launchers.pool import GRACE_SECONDS, Call, Pool, ctrl_c_afterwards, load
from poslab.system.devices import VISIBLE, visible_devices


def n_workers(n_jobs: int, cores: int) -> int:
    """``n_jobs``, or one for each core.

    Raises:
        ConfigError: neither -1 nor above 0.
    """
    if n_jobs == -1:
        return cores
    if n_jobs < 1:
        raise ConfigError(f"hydra.launcher.n_jobs={n_jobs} must be at least 1, or -1 for one for each core")
    return n_jobs


def become_worker(sweep: int, device: str | None) -> None:
    """Make this process one that works for a sweep and ends with it.

    Args:
        sweep: the sweep's process.
        device: the GPU that this worker's jobs see, as ``CUDA_VISIBLE_DEVICES`` names it; None for whatever is there.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, interrupt)
    # The workers share the cores; a number in trainer.threads has the last word.
    os.environ["OMP_NUM_THREADS"] = "1"
    if device is not None:
        os.environ[VISIBLE] = device
    parent = os.getppid()

    def end_with_the_sweep() -> None:
        # A job that nobody waits for must not write beside the one that takes its place.
        while os.getppid() == parent and is_alive(sweep):
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=end_with_the_sweep, daemon=True).start()


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # One that has ended is still there until its parent has asked how.
    state = Path(f"/proc/{process}/stat")
    return not (state.exists() and b") Z " in state.read_bytes())


def become_joblib_worker(sweep: int, devices: Sequence[str]) -> None:
    # Named by number: LokyProcess-3.
    index = int(current_process().name.rpartition("-")[2] or 1) - 1
    become_worker(sweep, devices[index % len(devices)] if devices else None)
    # Joblib's own way of starting processes, which it leaves set, cannot start the data workers of a job.
    set_start_method(None, force=True)


class JoblibPool(Pool["Future[JobReturn]"]):
    """Processes that stay for the next job, by joblib's own executor: it starts them clean, where a fork would not."""

    tries_again = True

    def __init__(self, n_jobs: int) -> None:
        self.loky = load("joblib.externals.loky", "joblib", "joblib")
        self.capacity = n_workers(n_jobs, self.loky.cpu_count())
        self.executor: Any = None
        self.size = 0

    def prepare(self, n_jobs: int, folder: Path) -> None:
        self.size = max(self.size, min(n_jobs, int(self.capacity)))
        if self.executor is not None and self.executor._max_workers < self.size:
            self.executor.shutdown()
            self.executor = None

    def start(self, calls: Sequence[Call]) -> list["Future[JobReturn]"]:
        return [self._submit(call) for call in calls]

    def _submit(self, call: Call) -> "Future[JobReturn]":
        for _ in range(2):
            if self.executor is None:
                self.executor = self.loky.ProcessPoolExecutor(
                    max_workers=self.size,
                    initializer=become_joblib_worker,
                    initargs=(os.getpid(), visible_devices()),
                    env={"OMP_NUM_THREADS": "1"},
                )
                # Of Python itself; when it starts, it lets a Ctrl-C through again.
                resource_tracker.ensure_running()
            try:
                with ctrl_c_afterwards():
                    submitted: Future[JobReturn] = self.executor.submit(call)
                return submitted
            except BrokenProcessPool:
                # One worker died, and the executor ended the others.
                self.executor = None
        raise LostJobError("the worker processes died at once")

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
            self.executor = None


def send(process: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(process, number)
