"""The part that all pools share: order, lost jobs, signals, errors."""

import os
import pickle
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from poslab import launchers
from poslab.errors import LostJobError


class FakePool(launchers.Pool[int]):
    """Jobs that end in the order they were started, or as they are told."""

    capacity = 2
    tries_again = True

    def __init__(self, dies: Sequence[tuple[str, int]] = (), at_end: Callable[[], None] = lambda: None) -> None:
        self.dies = dict(dies)
        self.at_end = at_end
        self.running: list[launchers.Call] = []
        self.most = 0
        self.alone: list[str] = []
        self.stopped: list[str] | None = None

    def start(self, calls: Sequence[launchers.Call]) -> list[int]:
        self.running += calls
        self.most = max(self.most, len(self.running))
        return [id(call) for call in calls]

    def ended(self, handles: Sequence[int]) -> list[int]:
        return [id(self.running[0])]

    def result(self, handle: int) -> JobReturn:
        call = self.running.pop(0)
        self.at_end()
        name = call.overrides[0]
        if self.dies.get(name, 0):
            self.dies[name] -= 1
            raise LostJobError(f"{name} is gone\nwith details")
        return JobReturn(overrides=call.overrides, status=JobStatus.COMPLETED, _return_value=name)

    def stop(self, handles: Sequence[int]) -> None:
        self.stopped = [call.overrides[0] for call in self.running]


class FakeLoader:
    """Composes a job from what was typed for it."""

    def load_sweep_config(self, config: DictConfig, overrides: list[str]) -> DictConfig:
        return OmegaConf.create({"typed": overrides})


def launch(pool: launchers.Pool[Any], n_jobs: int, folder: Path) -> list[JobReturn]:
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(folder)}, "hydra_logging": None, "verbose": False}})
    context = HydraContext(config_loader=FakeLoader(), callbacks=None)  # type: ignore[arg-type]
    return launchers.launch(pool, context, print, config, [[f"job{number}"] for number in range(n_jobs)], 0)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers.pool, "configure_log", lambda *args: None)


def test_returns_come_in_the_order_of_the_jobs_and_never_more_run_than_may(tmp_path: Path):
    pool = FakePool()
    assert [ended.return_value for ended in launch(pool, 5, tmp_path)] == [f"job{number}" for number in range(5)]
    assert pool.most == 2
    assert pool.stopped is None


def test_a_job_is_sent_with_its_configuration_and_reads_no_file(tmp_path: Path):
    GlobalHydra.instance()
    sent: list[launchers.Call] = []
    pool = FakePool()
    pool.at_end = lambda: sent.extend(pool.running[:1])
    launch(pool, 3, tmp_path)
    assert [pickle.loads(call.config) for call in sent] == [{"typed": ["job1"]}, {"typed": ["job2"]}]
    assert not any(b"FakeLoader" in pickle.dumps(vars(call) | {"singletons": None}) for call in sent)
    assert not any(GlobalHydra in call.singletons["instances"] for call in sent), "it has a loader too"


def test_a_lost_job_is_tried_again_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    returned = launch(FakePool([("job1", 1), ("job2", 2)]), 4, tmp_path)
    assert [ended.status for ended in returned] == [
        JobStatus.COMPLETED,
        JobStatus.COMPLETED,
        JobStatus.FAILED,
        JobStatus.COMPLETED,
    ]
    with pytest.raises(LostJobError, match="job2 is gone"):
        returned[2].return_value  # noqa: B018


def test_a_pool_that_has_tried_itself_is_not_asked_again(tmp_path: Path):
    pool = FakePool([("job1", 1)])
    pool.tries_again = False
    assert [ended.status for ended in launch(pool, 2, tmp_path)] == [JobStatus.COMPLETED, JobStatus.FAILED]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_pool_and_decides_the_exit_code(number: int, code: int, tmp_path: Path):
    pool = FakePool(at_end=lambda: os.kill(os.getpid(), number))
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as end:
            launch(pool, 4, tmp_path)
    finally:
        signal.signal(signal.SIGINT, handlers[signal.SIGINT])
    assert end.value.code == code
    assert pool.stopped == ["job1"], "the one that was running; nothing further was started"
    assert signal.getsignal(signal.SIGTERM) == handlers[signal.SIGTERM]


class Unpicklable(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def test_any_error_survives_the_way_back():
    plain, awkward = (
        vars(launchers.pool.failed([], error))["_return_value"] for error in (KeyError("a"), Unpicklable("a", "b"))
    )
    assert isinstance(plain, KeyError)
    assert (type(awkward), str(awkward)) == (RuntimeError, "Unpicklable: ab")
