"""Jobs in a queue, by submitit: SLURM's, or processes of this machine."""

import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn

from poslab.errors import ConfigError, LostJobError
from poslab.launchers.local import become_worker, n_workers, send
from poslab.launchers.pool import GRACE_SECONDS, Call, Pool, ctrl_c_afterwards, failed, load
from poslab.system.devices import check_device, visible_devices
from poslab.system.threads import available_cores

SIGNAL_DELAY_SECONDS = 30
"""How long before its time-out a job on this machine is asked to stop; submitit's own default."""
REQUEUED = (-1, 144)
"""Exit codes of a process whose job submitit has requeued: under SLURM, and on this machine."""


@dataclass
class SubmititCall(Call):
    """A job in a queue.

    Attributes:
        sweep: id of the sweep's process, if the job runs on the same machine.
        device: the GPU that the job sees; None for all.
        timeout_min: after which a job on the same machine is stopped.
        submitted: `time.monotonic` at its submission.
    """

    sweep: int | None = None
    device: str | None = None
    timeout_min: float = math.inf
    submitted: float = 0.0

    def __call__(self) -> JobReturn:
        if self.sweep is not None:
            become_worker(self.sweep, self.device)
        return super().__call__()

    def on_stop(self, stopped: BaseException) -> JobReturn:
        code = getattr(stopped.__cause__, "code", None)
        if code in REQUEUED and self.sweep is None:
            # The job resumes when the queue starts it again, so no result may say that it has ended.
            raise SystemExit(code)
        return self.timed_out() or super().on_stop(stopped)

    def timed_out(self) -> JobReturn | None:
        """What a job that has been running for too long on this machine returns; None if it has not."""
        if time.monotonic() - self.submitted < 60 * self.timeout_min - SIGNAL_DELAY_SECONDS:
            return None
        return failed(
            self.overrides,
            TimeoutError(f"stopped after hydra.launcher.timeout_min={self.timeout_min}, and sweep.resume resumes it"),
        )

    def checkpoint(self) -> Any:
        """What submitit requeues: the same call, which resumes in the same folder."""
        return load("submitit", "hydra/launcher=submitit", "slurm").helpers.DelayedSubmission(self)


class SubmititPool(Pool[Any]):
    """Processes of this machine, or a job array under SLURM."""

    call_type = SubmititCall
    # Parameters of AutoExecutor for every cluster; the names of others begin with the cluster's name.
    COMMON = ("timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb", "name")

    def __init__(self, cluster: str, n_jobs: int = -1, max_num_timeout: int = 0, **parameters: Any) -> None:
        self.submitit = load("submitit", f"hydra/launcher=submitit_{cluster}", "slurm")
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise ConfigError(
                "hydra/launcher=submitit_slurm: there is no sbatch on this machine; start the sweep on a login node of "
                "the cluster, or try hydra/launcher=submitit_local"
            )
        self.cluster = cluster
        self.here = cluster == "local"
        self.tries_again = self.here
        self.capacity = n_workers(n_jobs, available_cores()) if self.here else math.inf
        self.max_num_timeout = max_num_timeout
        self.parameters = {name: value for name, value in parameters.items() if value not in (None, {}, [])}
        self.devices: list[str] = []
        self.device_of: dict[Any, str] = {}
        self.call_of: dict[int, SubmititCall] = {}
        self.executor: Any = None

    @property
    def workers(self) -> int | str:
        if self.here:
            return int(self.capacity)
        return f"up to {self.parameters.get('array_parallelism', 256)}" if self.cluster == "slurm" else 1

    def check_devices(self, accelerator: str, devices: int) -> None:
        if self.cluster != "slurm":
            check_device(accelerator, devices)
        elif accelerator == "gpu" and not any(
            option.startswith(("gpu", "gres"))
            for option in [*self.parameters, *self.parameters.get("additional_parameters", {})]
        ):
            raise ConfigError(
                "trainer.accelerator=gpu, but SLURM is asked for none; set hydra.launcher.gpus_per_node=1"
            )

    def prepare(self, n_jobs: int, folder: Path) -> None:
        self.devices = visible_devices() if self.here else []
        self.executor = self.submitit.AutoExecutor(
            folder=folder / ".submitit" / "%j", cluster=self.cluster, slurm_max_num_timeout=self.max_num_timeout
        )
        self.executor.update_parameters(
            **{
                name if name in self.COMMON else f"{self.cluster}_{name}": value
                for name, value in self.parameters.items()
                if name in self.COMMON or self.cluster != "debug"
            }
        )

    def start(self, calls: Sequence[Call]) -> list[Any]:
        if not self.here:
            with self.executor.batch():
                return [self.executor.submit(call) for call in calls]
        jobs = []
        with ctrl_c_afterwards():
            for call in calls:
                assert isinstance(call, SubmititCall)
                call.sweep = os.getpid()
                # submitit hides all GPUs from a job that did not ask for one by number.
                call.device = self.freest_device()
                call.timeout_min = self.parameters.get("timeout_min", math.inf)
                call.submitted = time.monotonic()
                jobs.append(self.executor.submit(call))
                self.call_of[id(jobs[-1])] = call
                if call.device is not None:
                    self.device_of[jobs[-1]] = call.device
        return jobs

    def freest_device(self) -> str | None:
        """The GPU with the fewest running jobs; None without GPUs."""
        # Not in turn: as jobs differ in length, two could share one GPU while another is idle.
        return min(self.devices, key=[*self.device_of.values()].count, default=None)

    def ended(self, handles: Sequence[Any]) -> list[Any]:
        done = [handle for handle in handles if handle.done()]
        for handle in done:
            self.device_of.pop(handle, None)
        if not done:
            time.sleep(0.1 if self.here else 1)
        return done

    def result(self, handle: Any) -> JobReturn:
        if self.here and not handle.paths.result_pickle.exists():
            # submitit would wait for the file, in case the file system is slow.
            if ended := self.call_of[id(handle)].timed_out():
                return ended
            raise LostJobError(f"its process ended without a result, see {handle.paths.stderr}")
        return handle.result()

    def stop(self, handles: Sequence[Any]) -> None:
        if self.cluster == "slurm":
            arrays = sorted({handle.job_id.partition("_")[0] for handle in handles})
            if arrays:
                subprocess.call(["scancel", *arrays], stdout=subprocess.DEVNULL)
            return
        if not self.here:
            return
        # On this machine the id of a job is that of a process that watches it and passes signals on.
        watchers = {int(handle.job_id): handle for handle in handles}
        deadline = time.monotonic() + GRACE_SECONDS
        try:
            for watcher in watchers:
                send(watcher, signal.SIGTERM)
            while time.monotonic() < deadline and not all(handle.done() for handle in handles):
                time.sleep(0.05)
        finally:
            for watcher, handle in watchers.items():
                if not handle.done():
                    # The job ends itself when its parent is gone.
                    send(watcher, signal.SIGKILL)
