"""What becomes of a job in a queue that takes longer than it may."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.core.utils import JobStatus

from poslab.errors import LostJobError, StoppedError
from poslab.launchers.submitit import SubmititCall, SubmititPool
from support.launching import needs

REASON = r"stopped after hydra.launcher.timeout_min=1, and sweep.resume resumes it"


def job(minutes: float, sweep: int | None) -> SubmititCall:
    """A job that was submitted so many minutes ago and may take one."""
    call = SubmititCall(None, b"", print, {}, ["seed=1"], 0, sweep=sweep, timeout_min=1)
    call.submitted = time.monotonic() - 60 * minutes
    return call


def requeued() -> StoppedError:
    """How a run ends that submitit would start again."""
    stopped = StoppedError(10)
    stopped.__cause__ = SystemExit(144)
    return stopped


def test_a_time_out_on_this_machine_stops_the_job_and_does_not_start_it_again() -> None:
    ended = job(1, sweep=7).on_stop(requeued())
    assert ended.status == JobStatus.FAILED
    with pytest.raises(TimeoutError, match=REASON):
        ended.return_value  # noqa: B018
    with pytest.raises(RuntimeError, match="the job was stopped"):
        job(0.1, sweep=7).on_stop(StoppedError(15)).return_value  # noqa: B018
    with pytest.raises(SystemExit, match="144"):
        job(1, sweep=None).on_stop(requeued())


@needs("submitit_local")
def test_a_job_that_had_to_be_killed_at_its_time_out_is_not_tried_again(tmp_path: Path) -> None:
    pool = SubmititPool("local")
    paths = SimpleNamespace(result_pickle=tmp_path / "result.pkl", stderr=tmp_path / "stderr")
    late: Any = SimpleNamespace(paths=paths)
    pool.call_of = {id(late): job(1, sweep=7)}
    with pytest.raises(TimeoutError, match=REASON):
        pool.result(late).return_value  # noqa: B018
    pool.call_of = {id(late): job(0.1, sweep=7)}
    with pytest.raises(LostJobError, match="its process ended without a result"):
        pool.result(late)
