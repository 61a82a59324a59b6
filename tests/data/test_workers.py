"""Data workers: the same batches, and an error in one line instead of waiting for ever."""

import resource
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from poslab.cli.explain import explain
from poslab.data import workers
from poslab.data.stream import ReplicaBatch
from poslab.data.workers import loader, outlive_signals
from poslab.errors import DataWorkerError
from support.limits import in_time
from support.paths import CONF


class Numbers(Dataset[ReplicaBatch]):
    """Batches of one number; the third takes a while."""

    def __init__(self, seconds: float = 0) -> None:
        self.seconds = seconds

    def __getitem__(self, step: int) -> ReplicaBatch:
        if step == 2:
            time.sleep(self.seconds)
        tokens = torch.full((1, 2, 3), step)
        return ReplicaBatch(tokens, tokens + 1, (3,))


@pytest.fixture(autouse=True)
def _quick_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)
    monkeypatch.setattr(workers, "WORKER_GRACE_SECONDS", 1)


def test_batches_are_those_of_this_process_in_order() -> None:
    alone, together = (list(loader(Numbers(), range(4), n)) for n in (0, 2))
    assert [batch.seq_lens for batch in together] == [(3,)] * 4
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert torch.equal(one.targets, other.targets)


def without_files(worker: int) -> None:
    """As on a full disk: from here on no file can get a first byte, those in shared memory included."""
    outlive_signals(worker)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def test_a_batch_that_cannot_be_sent_ends_the_run_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "outlive_signals", without_files)
    with in_time(60), pytest.raises(DataWorkerError) as refused:
        list(loader(Numbers(), range(3), 1))
    said = explain(refused.value, CONF)
    assert said.startswith("the data workers cannot send their batches; they need room in /dev/shm, which has ")
    assert said.endswith("free: make it larger (docker run --shm-size=1g), or do without workers: data.num_workers=0")


def test_the_wait_for_a_batch_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MOST_WAIT_SECONDS", 1)
    got: list[Any] = []
    with in_time(60), pytest.raises(DataWorkerError, match="no batch for 1 s, so a data worker has stopped; they need"):
        got.extend(batch.tokens for batch in loader(Numbers(seconds=30), range(4), 1))


def test_workers_without_room_for_their_queues_are_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.os, "statvfs", lambda path: SimpleNamespace(f_bavail=2, f_frsize=2**16))
    assert len(list(loader(Numbers(), range(2), 1))) == 2
    with pytest.raises(DataWorkerError, match=r"cannot start; they need room in /dev/shm, which has 128\.0 KiB free"):
        list(loader(Numbers(), range(2), 2))
    assert len(list(loader(Numbers(), range(2), 0))) == 2
