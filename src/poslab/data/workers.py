"""Loads batches, in this process or by data workers, which are other processes.

A data worker sends a batch through a file in ``/dev/shm``. If that is full, torch prints a traceback in the worker, and
this process waits for the batch for ever; Docker gives a container 64 MB of it.
"""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from poslab.errors import DataWorkerError
from poslab.system.files import as_text
from poslab.system.signals import stopping_signals

WORKER_GRACE_SECONDS = 5
"""How long a data worker that receives SIGTERM continues, so that the main process can finish its step."""
MOST_WAIT_SECONDS = 300
"""How long to wait for a batch, which takes microseconds to make."""
SHARED_MEMORY = Path("/dev/shm")
LEAST_SHARED_BYTES = 2**16
"""Of the queues and locks of one worker."""
NOT_SENT = re.compile(r"shared memory|\bshm\b|</torch_")
"""In the messages of torch about a batch that found no room."""


def loader(dataset: Any, sampler: Any, num_workers: int) -> DataLoader[Any]:
    """Build a DataLoader for a dataset whose items are whole batches.

    Args:
        dataset: batches by number.
        sampler: the numbers to load, in order.
        num_workers: processes that generate batches; 0: this process does.
    """
    options = {"batch_size": None, "sampler": sampler, "pin_memory": torch.cuda.is_available()}
    # The loader draws a seed for its workers: with its own generator the global random state does not change.
    options["generator"] = torch.Generator().manual_seed(0)
    if num_workers == 0:
        return DataLoader(dataset, **options)
    return WorkerLoader(
        dataset,
        num_workers=num_workers,
        persistent_workers=True,
        worker_init_fn=outlive_signals,
        collate_fn=in_shared_memory,
        timeout=MOST_WAIT_SECONDS,
        **options,
    )


class WorkerLoader(DataLoader[Any]):
    """A loader with data workers that says in one line why they send no batches.

    Raises:
        DataWorkerError: while it is iterated.
    """

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        free = free_shared_bytes()
        if free is not None and free < LEAST_SHARED_BYTES * (self.num_workers + 1):
            raise no_room("the data workers cannot start")
        try:
            yield from super().__iter__()
        except RuntimeError as error:
            if NOT_SENT.search(str(error)):
                raise no_room("the data workers cannot send their batches") from error
            if "timed out" in str(error):
                raise no_room(f"no batch for {MOST_WAIT_SECONDS} s, so a data worker has stopped") from error
            raise


def free_shared_bytes() -> int | None:
    """What is free for the data workers; None where the system has no such folder."""
    if not SHARED_MEMORY.is_dir():
        return None
    found = os.statvfs(SHARED_MEMORY)
    return found.f_bavail * found.f_frsize


def no_room(what: str) -> DataWorkerError:
    """The error of data workers that may have too little shared memory."""
    free = free_shared_bytes()
    where = "" if free is None else f"; they need room in {SHARED_MEMORY}, which has {as_text(free)} free"
    return DataWorkerError(
        f"{what}{where}: make it larger (docker run --shm-size=1g), or do without workers: data.num_workers=0"
    )


def in_shared_memory(batch: Any) -> Any:
    """Move a data worker's batch to shared memory here, because an error at a later place is lost."""
    for part in batch:
        if isinstance(part, Tensor):
            part.share_memory_()
    return batch


def outlive_signals(worker: int) -> None:
    """Let a data worker ignore the signals that stop a run: the main process still needs batches to finish its step.

    Args:
        worker: number of this data worker.
    """
    for number in stopping_signals():
        signal.signal(number, signal.SIG_IGN)
    # The main process also sends SIGTERM to end a worker, so the worker must end, but a little later.
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(WORKER_GRACE_SECONDS))
