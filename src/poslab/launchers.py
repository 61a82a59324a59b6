"""Runs the jobs of a sweep side by side: in processes of this machine, on a Ray cluster, under SLURM.

`run` reads top to bottom and is the same for all; a `Pool` knows how one kind of worker is started, awaited and
stopped. What a job found is in its folder, whoever ran it; what comes back here only says that it has ended.
"""

import logging
import math
import os
import pickle
import shutil
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import current_process, resource_tracker, set_start_method
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from poslab.config import ConfigError, TrainConfig
from poslab.preflight import check_device
from poslab.resume import stored_result
from poslab.threads import available_cores

log = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""How long jobs that are told to stop may take to leave their folder in order; then they are killed."""
# What submitit ends a process with after it has put its job back in the queue: under SLURM, and on this machine.
PUT_BACK = (-1, 144)

Handle = TypeVar("Handle")


class LostJobError(RuntimeError):
    """A job's process ended without a word."""


@dataclass
class Call:
    """One job, as it travels to the process that runs it."""

    hydra_context: HydraContext
    config: DictConfig
    task_function: TaskFunction
    singletons: dict[Any, Any]
    overrides: Sequence[str]
    number: int

    def __call__(self) -> JobReturn:
        """Run the job here; an error, or an order to stop, is part of what is returned."""
        setup_globals()
        Singleton.set_state(self.singletons)
        try:
            config = self.hydra_context.config_loader.load_sweep_config(self.config, list(self.overrides))
            with open_dict(config):
                config.hydra.job.id = f"{config.hydra.job.name}_{self.number}"
                config.hydra.job.num = self.number
                handlers = OmegaConf.select(config, "hydra.job_logging.root.handlers")
                if handlers:
                    # Lines of several jobs in one console are no use to anyone; each has them in its own file.
                    config.hydra.job_logging.root.handlers = [name for name in handlers if name != "console"]
            HydraConfig.instance().set_config(config)
            ended = run_job(
                task_function=self.task_function,
                config=config,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
                hydra_context=self.hydra_context,
            )
        except (KeyboardInterrupt, SystemExit) as stopped:
            self.on_stop(stopped)
            return failed(self.overrides, RuntimeError("the job was stopped"))
        except Exception as error:
            return failed(self.overrides, error)
        if ended.status != JobStatus.COMPLETED:
            return failed(self.overrides, vars(ended)["_return_value"])
        return JobReturn(overrides=self.overrides, status=ended.status, _return_value=ended.return_value)

    def on_stop(self, stopped: BaseException) -> None:
        """The job was told to stop, and has."""


def failed(overrides: Sequence[str], error: BaseException) -> JobReturn:
    """What is returned for a job that failed, in a form that survives the way back."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        # Many an exception cannot be made from its message again, and would take the whole pool with it.
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return JobReturn(overrides=overrides, status=JobStatus.FAILED, _return_value=error)


class Pool(ABC, Generic[Handle]):
    """One kind of worker."""

    capacity: float
    """How many jobs may be handed over at once."""
    call_type: ClassVar[type[Call]] = Call
    tries_again = False
    """Whether a lost job deserves a second try: not where the pool itself has tried, or someone may have cancelled."""

    @property
    def workers(self) -> int | str:
        """How many jobs run at once, for people."""
        return int(self.capacity)

    def check_job(self, job: TrainConfig) -> None:
        """Refuse a job that could not run on these workers.

        Raises:
            ConfigError: what it asks for is not there.
        """
        check_device(job)

    def prepare(self, n_jobs: int, folder: Path) -> None:
        """Called before jobs are handed over, while none is running."""

    @abstractmethod
    def start(self, calls: Sequence[Call]) -> list[Handle]:
        """Hand jobs over."""

    @abstractmethod
    def ended(self, handles: Sequence[Handle]) -> list[Handle]:
        """Those that have ended; waits a moment for one."""

    @abstractmethod
    def result(self, handle: Handle) -> JobReturn:
        """What an ended job returned.

        Raises:
            Exception: nothing; its process is gone, or could not even begin.
        """

    @abstractmethod
    def stop(self, handles: Sequence[Handle]) -> None:
        """Tell these jobs to stop, give them `GRACE_SECONDS`, leave none behind."""


def launch(
    pool: Pool[Any],
    hydra_context: HydraContext,
    task_function: TaskFunction,
    config: DictConfig,
    job_overrides: Sequence[Sequence[str]],
    first: int,
) -> list[JobReturn]:
    """Run jobs on a pool; one return for each, in their order.

    Args:
        pool: the workers.
        hydra_context: composes a job's configuration.
        task_function: what a job does.
        config: of the multirun.
        job_overrides: what makes each job different.
        first: number of the first job.

    Raises:
        SystemExit: told to stop, with exit code 130 (Ctrl-C) or 143 (SIGTERM).
    """
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    folder = Path(config.hydra.sweep.dir).absolute()
    state = Singleton.get_state()
    calls = [
        pool.call_type(hydra_context, config, task_function, state, list(overrides), first + number)
        for number, overrides in enumerate(job_overrides)
    ]
    report = Report(folder, len(calls))
    with sigterm_exits():
        try:
            returned, lost = run(pool, calls, folder, report)
            if lost and pool.tries_again:
                report.say_lost(lost.values())
                for call in list(lost):
                    # Alone, so that a job that always takes its neighbours with it takes none.
                    again, still_lost = run(pool, [calls[call]], folder, report)
                    if again:
                        returned[call] = again[0]
                        del lost[call]
                    else:
                        lost[call] = still_lost[0]
        except KeyboardInterrupt:
            raise SystemExit(130) from None
    for call, reason in lost.items():
        returned[call] = failed(calls[call].overrides, reason)
        report.say(returned[call])
    return [returned[call] for call in range(len(calls))]


def run(
    pool: Pool[Any], calls: Sequence[Call], folder: Path, report: "Report"
) -> tuple[dict[int, JobReturn], dict[int, Exception]]:
    """Run jobs, never more at once than the pool takes.

    Returns:
        by index into ``calls``, what each returned; and why nothing came back from the others.
    """
    pool.prepare(len(calls), folder)
    waiting = list(range(len(calls)))
    running: dict[Any, int] = {}
    returned: dict[int, JobReturn] = {}
    lost: dict[int, Exception] = {}
    try:
        while waiting or running:
            n_free = len(waiting) if pool.capacity == math.inf else int(pool.capacity) - len(running)
            next_ones, waiting = waiting[:n_free], waiting[n_free:]
            if next_ones:
                running |= zip(pool.start([calls[call] for call in next_ones]), next_ones, strict=True)
            for handle in pool.ended(list(running)):
                call = running.pop(handle)
                try:
                    returned[call] = pool.result(handle)
                    report.say(returned[call])
                except Exception as error:
                    lost[call] = error
    except BaseException:
        pool.stop(list(running))
        raise
    return returned, lost


class Report:
    """Says in a line how each job ended."""

    def __init__(self, folder: Path, n_jobs: int) -> None:
        self.folder = folder
        self.n_jobs = n_jobs
        self.n_ended = 0

    def say(self, ended: JobReturn) -> None:
        self.n_ended += 1
        name = next(
            (each.partition("=")[2] for each in ended.overrides or () if each.startswith("hydra.sweep.subdir=")), ""
        )
        result = stored_result(self.folder / name)
        metrics = result.get("metrics", {})
        facts = [f"{metric} {metrics[metric]:.4f}" for metric in ("val/loss", "val/exact_match") if metric in metrics]
        facts += [f"{result['wall_seconds']:.1f} s"] if result.get("wall_seconds") else []
        error = vars(ended)["_return_value"] if ended.status == JobStatus.FAILED else None
        if error is not None:
            facts.append(str(result.get("error") or one_line(error)))
        elif not result:
            facts.append("it ended, but its folder cannot be seen from here")
        status = result.get("status", "not started")
        log.info("%-11s %s (%d of %d): %s", status, name, self.n_ended, self.n_jobs, ", ".join(facts))

    def say_lost(self, reasons: Iterable[Exception]) -> None:
        lost = list(reasons)
        log.warning("%d jobs lost their process (%s); each is tried once more, alone", len(lost), one_line(lost[0]))


def one_line(error: object) -> str:
    """The first sentence of a message: what a library adds is for its developers."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line.partition(". ")[0]


@contextmanager
def sigterm_exits() -> Iterator[None]:
    """Leave in order on a SIGTERM, which would end this process at once and its jobs not at all."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(143)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def ctrl_c_afterwards() -> Iterator[None]:
    """Processes that are started in here never see a Ctrl-C, which reaches all of a terminal's; this one does, later.

    The sweep's own process answers it and tells each worker, once.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def load(name: str, launcher: str, extra: str) -> Any:
    """A module of an extra.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        raise ConfigError(f"hydra/launcher={launcher} needs {error.name}: pip install 'poslab[{extra}]'") from None


# Workers on this machine.


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


def visible_devices() -> list[str]:
    """The GPUs of this process, as ``CUDA_VISIBLE_DEVICES`` names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [device for device in named.split(",") if device]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


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
        os.environ["CUDA_VISIBLE_DEVICES"] = device
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


# A Ray cluster.


@dataclass
class RayCall(Call):
    hide_devices: bool = False

    def __call__(self) -> JobReturn:
        if self.hide_devices:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return super().__call__()


def call_on_ray(call: Call) -> JobReturn:
    return call()


class RayPool(Pool[Any]):
    """A Ray cluster, which queues the jobs itself and starts those of a dead node again on another."""

    capacity = math.inf
    call_type = RayCall

    def __init__(self, init: dict[str, Any], remote: dict[str, Any]) -> None:
        self.init = {name: value for name, value in init.items() if value is not None}
        if "address" in self.init and "RAY_AUTH_MODE" not in os.environ and (Path.home() / ".ray/auth_token").exists():
            # A cluster on this machine asks for this token; one that asks for none does not mind. Read at the import.
            os.environ["RAY_AUTH_MODE"] = "token"
        self.ray = load("ray", "ray", "ray")
        self.remote = {name: value for name, value in remote.items() if value is not None}
        if "address" in self.init:
            # Before a folder is made for a sweep that has nowhere to run.
            self.connect()

    def connect(self) -> None:
        """Start a cluster here, or join the one named.

        Raises:
            ConfigError: there is none.
        """
        if self.ray.is_initialized():
            return
        # Ray repeats what it logs about its own processes; jobs have files of their own.
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if "address" not in self.init:
            # Results travel through files: the smallest store will do.
            options |= {"address": "local", "num_cpus": available_cores(), "include_dashboard": False}
            options |= {"object_store_memory": 80 * 2**20}
        try:
            self.ray.init(**options | self.init)
        except (ConnectionError, ValueError) as error:
            raise ConfigError(
                f"hydra.launcher.ray.init.address={self.init.get('address')}: {one_line(error)}"
            ) from error

    @property
    def workers(self) -> str:
        n_jobs, n_nodes = self.places()
        return f"{n_jobs} on {n_nodes} node{'s' if n_nodes > 1 else ''}"

    def places(self) -> tuple[int, int]:
        """How many jobs fit on the cluster at once, and its nodes.

        Raises:
            ConfigError: none does, and Ray would wait for ever.
        """
        self.connect()
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        needs = {"CPU": self.remote.get("num_cpus", 1), "GPU": self.remote.get("num_gpus", 0)}
        n_jobs = sum(
            min((int(node.get(kind, 0) / amount) for kind, amount in needs.items() if amount), default=1)
            for node in nodes
        )
        if n_jobs == 0:
            raise ConfigError(
                f"no node of the cluster has what a job asks for: hydra.launcher.ray.remote.num_cpus={needs['CPU']}, "
                f"num_gpus={needs['GPU']}"
            )
        return n_jobs, len(nodes)

    def check_job(self, job: TrainConfig) -> None:
        if job.trainer.accelerator == "gpu" and not self.remote.get("num_gpus"):
            raise ConfigError(
                "trainer.accelerator=gpu, but hydra.launcher.ray.remote.num_gpus=0 gives the job none; set it to 1, or "
                "to a part of one for jobs that share"
            )

    def prepare(self, n_jobs: int, folder: Path) -> None:
        self.places()

    def start(self, calls: Sequence[Call]) -> list[Any]:
        task = self.ray.remote(**self.remote)(call_on_ray)
        for call in calls:
            assert isinstance(call, RayCall)
            call.hide_devices = not self.remote.get("num_gpus")
        return [task.remote(call) for call in calls]

    def ended(self, handles: Sequence[Any]) -> list[Any]:
        done: list[Any] = self.ray.wait(list(handles), num_returns=1, timeout=1)[0]
        return done

    def result(self, handle: Any) -> JobReturn:
        returned: JobReturn = self.ray.get(handle)
        return returned

    def stop(self, handles: Sequence[Any]) -> None:
        try:
            for handle in handles:
                self.ray.cancel(handle)
            if handles:
                self.ray.wait(list(handles), num_returns=len(handles), timeout=GRACE_SECONDS)
        finally:
            self.ray.shutdown()


# submitit.


@dataclass
class SubmititCall(Call):
    sweep: int | None = None
    device: str | None = None

    def __call__(self) -> JobReturn:
        if self.sweep is not None:
            become_worker(self.sweep, self.device)
        return super().__call__()

    def on_stop(self, stopped: BaseException) -> None:
        code = getattr(stopped.__cause__, "code", None)
        if code in PUT_BACK:
            # It is in the queue again and goes on then: no result must say that it has ended.
            raise SystemExit(code)

    def checkpoint(self) -> Any:
        """What submitit puts back in the queue: the same again, which goes on in the same folder."""
        return load("submitit", "submitit", "slurm").helpers.DelayedSubmission(self)


class SubmititPool(Pool[Any]):
    """Processes here, or a job array under SLURM."""

    call_type = SubmititCall
    # Of AutoExecutor, for every kind of cluster; the others carry the cluster's name.
    COMMON = ("timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb", "name")

    def __init__(self, cluster: str, n_jobs: int = -1, max_num_timeout: int = 0, **parameters: Any) -> None:
        self.submitit = load("submitit", f"submitit_{cluster}", "slurm")
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
        self.n_started = 0
        self.executor: Any = None

    @property
    def workers(self) -> int | str:
        if self.here:
            return int(self.capacity)
        return f"up to {self.parameters.get('array_parallelism', 256)}" if self.cluster == "slurm" else 1

    def check_job(self, job: TrainConfig) -> None:
        if self.cluster != "slurm":
            check_device(job)
        elif job.trainer.accelerator == "gpu" and not any(
            option.startswith(("gpu", "gres")) for option in [*self.parameters, *self.additional_parameters()]
        ):
            raise ConfigError(
                "trainer.accelerator=gpu, but SLURM is asked for none; set hydra.launcher.gpus_per_node=1"
            )

    def additional_parameters(self) -> dict[str, Any]:
        return dict(self.parameters.get("additional_parameters", {}))

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
                # submitit hides every GPU from a job that did not ask for one by number.
                call.device = self.devices[self.n_started % len(self.devices)] if self.devices else None
                self.n_started += 1
                jobs.append(self.executor.submit(call))
        return jobs

    def ended(self, handles: Sequence[Any]) -> list[Any]:
        done = [handle for handle in handles if handle.done()]
        if not done:
            time.sleep(0.1 if self.here else 1)
        return done

    def result(self, handle: Any) -> JobReturn:
        if self.here and not handle.paths.result_pickle.exists():
            # submitit would wait for a slow file system.
            raise LostJobError(f"its process ended without a result, see {handle.paths.stderr}")
        returned: JobReturn = handle.result()
        return returned

    def stop(self, handles: Sequence[Any]) -> None:
        if self.cluster == "slurm":
            arrays = sorted({handle.job_id.partition("_")[0] for handle in handles})
            if arrays:
                subprocess.call(["scancel", *arrays], stdout=subprocess.DEVNULL)
            return
        if not self.here:
            return
        # A job's identity here is the process that watches over it and passes the signal on.
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
                    # The job sees that its parent is gone and ends itself.
                    send(watcher, signal.SIGKILL)


__all__ = ["JoblibPool", "Pool", "RayPool", "SubmititPool", "launch"]
