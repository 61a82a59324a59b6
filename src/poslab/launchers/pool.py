"""Runs the jobs of a sweep side by side: in processes of this machine, on a Ray cluster, under SLURM.

`run` is the same for all of them; a `Pool` starts, awaits and stops one kind of worker. A job leaves its results in its
folder, whichever worker ran it; what it returns here only says that it has ended.
"""

import logging
import math
import pickle
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from poslab.errors import ConfigError, StoppedError
from poslab.runs.result import stored_result
from poslab.system.devices import check_device

log = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""How long a job may take to write its status after a signal to stop; then it is killed."""

Handle = TypeVar("Handle")


@dataclass
class Call:
    """One job, pickled and sent to the process that runs it.

    Attributes:
        callbacks: Hydra's, of the job.
        config: of the job, composed and pickled, so that the other process reads no configuration file.
        task_function: what a job does.
        singletons: Hydra's state.
        overrides: what makes the job different.
        number: of the job.
    """

    callbacks: Any
    config: bytes
    task_function: TaskFunction
    singletons: dict[Any, Any]
    overrides: Sequence[str]
    number: int

    def __call__(self) -> JobReturn:
        """Run the job in this process; returns an error, or a signal to stop, instead of raising it."""
        setup_globals()
        Singleton.set_state(self.singletons)
        try:
            config = pickle.loads(self.config)
            with open_dict(config):
                config.hydra.job.id = f"{config.hydra.job.name}_{self.number}"
                config.hydra.job.num = self.number
                handlers = OmegaConf.select(config, "hydra.job_logging.root.handlers")
                if handlers:
                    # The lines of several jobs would mix in one console; each job has a log file.
                    config.hydra.job_logging.root.handlers = [
                        name for name in handlers if name not in ("console", "terminal")
                    ]
            HydraConfig.instance().set_config(config)
            ended = run_job(
                task_function=self.task_function,
                config=config,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
                # Hydra reads only the callbacks. The loader would be sent with the configurations of all jobs.
                hydra_context=HydraContext(config_loader=cast(ConfigLoader, None), callbacks=self.callbacks),
            )
        except (KeyboardInterrupt, SystemExit) as stopped:
            return self.on_stop(stopped)
        except Exception as error:
            return failed(self.overrides, error)
        if ended.status != JobStatus.COMPLETED:
            return failed(self.overrides, vars(ended)["_return_value"])
        return JobReturn(overrides=self.overrides, status=ended.status, _return_value=ended.return_value)

    def on_stop(self, stopped: BaseException) -> JobReturn:
        """What the job returns when a signal has stopped it."""
        return failed(self.overrides, RuntimeError("the job was stopped"))


def failed(overrides: Sequence[str], error: BaseException) -> JobReturn:
    """The return of a job that failed, with an error that can be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        # An exception whose constructor takes more than a message cannot be unpickled, and would end the whole pool.
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return JobReturn(overrides=overrides, status=JobStatus.FAILED, _return_value=error)


class Pool(ABC, Generic[Handle]):
    """One kind of worker.

    Attributes:
        capacity: how many jobs may be submitted at once.
        call_type: the class of its calls.
        tries_again: whether a lost job is started once more. Not if the pool itself has tried, or if a person may have
            cancelled the job.
    """

    capacity: float
    call_type: ClassVar[type[Call]] = Call
    tries_again = False

    @property
    def workers(self) -> int | str:
        """How many jobs run at once, as text or number for the console."""
        return int(self.capacity)

    def check_devices(self, accelerator: str, devices: int) -> None:
        """Refuse a job whose devices these workers do not have.

        Args:
            accelerator: ``trainer.accelerator`` of the job.
            devices: ``trainer.devices`` of the job.

        Raises:
            ConfigError: names the device and the way out.
        """
        check_device(accelerator, devices)

    def prepare(self, n_jobs: int, folder: Path) -> None:
        """Called before jobs are submitted, while no job is running."""

    @abstractmethod
    def start(self, calls: Sequence[Call]) -> list[Handle]:
        """Submit jobs."""

    @abstractmethod
    def ended(self, handles: Sequence[Handle]) -> list[Handle]:
        """The jobs that have ended; waits a moment for one."""

    @abstractmethod
    def result(self, handle: Handle) -> JobReturn:
        """What an ended job returned.

        Raises:
            Exception: the job returned nothing, because its process ended or did not start.
        """

    @abstractmethod
    def stop(self, handles: Sequence[Handle]) -> None:
        """Ask these jobs to stop, and kill those that are still running after `GRACE_SECONDS`."""


def launch(
    pool: Pool[Any],
    hydra_context: HydraContext,
    task_function: TaskFunction,
    config: DictConfig,
    job_overrides: Sequence[Sequence[str]],
    first: int,
) -> list[JobReturn]:
    """Run jobs on a pool; returns what each job returned, in the order of the jobs.

    Args:
        pool: the workers.
        hydra_context: composes a job's configuration.
        task_function: what a job does.
        config: of the multirun.
        job_overrides: what makes each job different.
        first: number of the first job.

    Raises:
        SystemExit: a signal stopped the sweep, with exit code 130 (Ctrl-C) or 143 (SIGTERM).
    """
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    folder = Path(config.hydra.sweep.dir).absolute()
    state = Singleton.get_state()
    # Without its loader, which has the configurations of all jobs.
    state["instances"] = {kind: one for kind, one in state["instances"].items() if kind is not GlobalHydra}
    loader, callbacks = hydra_context.config_loader, hydra_context.callbacks
    composed = [pickle.dumps(loader.load_sweep_config(config, list(overrides))) for overrides in job_overrides]
    calls = {
        number: pool.call_type(callbacks, composed[number], task_function, state, list(overrides), first + number)
        for number, overrides in enumerate(job_overrides)
    }
    report = Report(folder, len(calls))

    def leave(number: int, frame: object) -> None:
        raise StoppedError(number)

    # Here, because Ray replaces the handler of the command.
    before = signal.signal(signal.SIGTERM, leave)
    try:
        returned, lost = run(pool, calls, folder, report)
        if lost and pool.tries_again:
            report.say_lost(lost.values())
            for number in list(lost):
                # One at a time: a job that kills its workers again loses no other job.
                again, lost_again = run(pool, {number: calls[number]}, folder, report)
                returned |= again
                del lost[number]
                lost |= lost_again
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    for number, reason in lost.items():
        returned[number] = failed(calls[number].overrides, reason)
        report.say(returned[number])
    return [returned[number] for number in calls]


def run(
    pool: Pool[Any], calls: Mapping[int, Call], folder: Path, report: "Report"
) -> tuple[dict[int, JobReturn], dict[int, Exception]]:
    """Run jobs, at most as many at once as the pool takes.

    Returns:
        by number of the job, what each job returned, and for each lost job the reason.
    """
    pool.prepare(len(calls), folder)
    waiting = list(calls)
    running: dict[Any, int] = {}
    returned: dict[int, JobReturn] = {}
    lost: dict[int, Exception] = {}
    try:
        while waiting or running:
            n_free = len(waiting) if pool.capacity == math.inf else int(pool.capacity) - len(running)
            next_ones, waiting = waiting[:n_free], waiting[n_free:]
            if next_ones:
                running |= zip(pool.start([calls[number] for number in next_ones]), next_ones, strict=True)
            for handle in pool.ended(list(running)):
                number = running.pop(handle)
                try:
                    returned[number] = pool.result(handle)
                    report.say(returned[number])
                except Exception as error:
                    lost[number] = error
    except BaseException:
        pool.stop(list(running))
        raise
    return returned, lost


class Report:
    """Logs one line for each job that has ended."""

    def __init__(self, folder: Path, n_jobs: int) -> None:
        self.folder = folder
        self.n_jobs = n_jobs
        self.n_ended = 0
        self.began = time.monotonic()

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
        if isinstance(error, TimeoutError):
            facts.append(str(error))
        elif error is not None:
            facts.append(str(result.get("error") or first_sentence(error)))
        elif not result:
            facts.append("it ended, but its folder cannot be seen from here")
        if self.n_ended < self.n_jobs:
            seconds = (time.monotonic() - self.began) / self.n_ended
            facts.append(time_left(seconds * (self.n_jobs - self.n_ended)))
        status = result.get("status", "not started")
        log.info("%-11s %s (%d of %d): %s", status, name, self.n_ended, self.n_jobs, ", ".join(facts))

    def say_lost(self, reasons: Iterable[Exception]) -> None:
        lost = list(reasons)
        log.warning(
            "%d jobs lost their process (%s); each is tried once more, alone", len(lost), first_sentence(lost[0])
        )


def time_left(seconds: float) -> str:
    """``about 40 s left``, in the unit that a person would use."""
    unit, length = next(((name, size) for name, size in (("h", 3600), ("min", 60)) if seconds > 2 * size), ("s", 1))
    return f"about {math.ceil(seconds / length)} {unit} left"


def first_sentence(error: object) -> str:
    """The first sentence of an error: what a library adds is for its developers."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line.partition(". ")[0]


@contextmanager
def ctrl_c_afterwards() -> Iterator[None]:
    """Block Ctrl-C in here: processes that are started in here never receive it, this process receives it afterwards.

    A terminal sends a Ctrl-C to all its processes, but only the sweep's process answers it and stops the workers.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def load(name: str, setting: str, extra: str) -> Any:
    """Import a module of an extra that a setting needs.

    Raises:
        ConfigError: the extra is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        raise ConfigError(f"{setting} needs {error.name}: pip install 'poslab[{extra}]'") from None
