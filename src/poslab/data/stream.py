"""Batches for training and validation, each addressed by (seed, split, step): any one can be made again alone."""

import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from poslab.system.signals import stopping_signals
from poslab.tasks import Task
from poslab.tasks.base import IGNORED, Batch

SPLITS = {"train": 0, "val": 1}
WORKER_GRACE_SECONDS = 5
"""How long a data worker that is told to stop goes on for the step that is being made."""


class TensorBatch(NamedTuple):
    """Token ids and targets of one seed, both (B, T) int64; a target of -100 counts in no loss."""

    tokens: Int64[Tensor, "b t"]
    targets: Int64[Tensor, "b t"]


class ReplicaBatch(NamedTuple):
    """Token ids and targets of every replica, both (N, B, T), and the T of each replica's rows without padding."""

    tokens: Int64[Tensor, "n b t"]
    targets: Int64[Tensor, "n b t"]
    seq_lens: tuple[int, ...]


def on_device(ids: Tensor, device: torch.device) -> Tensor:
    """Ids on a device; Lightning's own transfer searches every part of a batch."""
    return ids.to(device, non_blocking=device.type == "cuda")


class BatchStream:
    """The batches of one split and one seed: batch ``step`` depends on seed, split and step alone."""

    def __init__(self, task: Task, seed: int, split: str, batch_size: int, vocab_size: int) -> None:
        self.task = task
        self.seed = seed
        self.split = split
        self.batch_size = batch_size
        self.vocab_size = vocab_size

    def batch(self, step: int, length: int | None = None) -> TensorBatch:
        """Batch ``step``; of one length of the task, or of one that training sees if None.

        Raises:
            ValueError: a token or target outside the vocabulary, or a length that the task does not have.
        """
        tokens, targets = self.sample(step, length)
        check_ids(self.task, tokens, targets, self.vocab_size)
        return TensorBatch(torch.from_numpy(tokens), torch.from_numpy(targets))

    def sample(self, step: int, length: int | None = None) -> Batch:
        """The batch as the task makes it, before any check.

        Raises:
            ValueError: a length that the task does not have.
        """
        # A generator of its own per batch: nothing that draws numbers elsewhere can move the data.
        rng = np.random.default_rng([self.seed, SPLITS[self.split], step])
        return self.task.sample(rng, self.batch_size, length)


class ReplicaStream(Dataset[ReplicaBatch]):
    """``stream[step]`` is batch ``step`` of every replica, side by side.

    Every rank makes the same whole batch and keeps its own rows, so the union over ranks is what one process sees.

    Args:
        streams: of the replicas.
        at_least: pad rows to this many tokens.
        rank, world_size: which rows to keep.

    Raises:
        ValueError: on access, a token or target outside the vocabulary, or a batch whose ranks would count different
            numbers of targets: the mean of their losses would not be the batch's.
    """

    def __init__(self, streams: Sequence[BatchStream], at_least: int = 0, rank: int = 0, world_size: int = 1) -> None:
        self.streams = streams
        self.at_least = at_least
        self.rank = rank
        self.world_size = world_size

    def __getitem__(self, step: int) -> ReplicaBatch:
        first = self.streams[0]
        whole = side_by_side([stream.sample(step) for stream in self.streams], self.at_least)
        # Once for all replicas: a check of each takes half as long as making its batch.
        check_ids(first.task, whole.tokens.numpy(), whole.targets.numpy(), first.vocab_size)
        if self.world_size == 1:
            return whole
        check_shares(first.task, whole.targets.numpy(), self.world_size)
        n_rows = first.batch_size
        rows = slice(self.rank * n_rows // self.world_size, (self.rank + 1) * n_rows // self.world_size)
        return ReplicaBatch(whole.tokens[:, rows].clone(), whole.targets[:, rows].clone(), whole.seq_lens)


def side_by_side(batches: Sequence[Batch], at_least: int = 0) -> ReplicaBatch:
    """One batch of every replica; rows are padded to the longest, or to ``at_least``, with ignored tokens."""
    seq_lens = tuple(batch.tokens.shape[1] for batch in batches)
    shape = len(batches), len(batches[0].tokens), max(*seq_lens, at_least)
    tokens, targets = np.zeros(shape, dtype=np.int64), np.full(shape, IGNORED)
    for replica, (batch, seq_len) in enumerate(zip(batches, seq_lens, strict=True)):
        tokens[replica, :, :seq_len], targets[replica, :, :seq_len] = batch
    return ReplicaBatch(torch.from_numpy(tokens), torch.from_numpy(targets), seq_lens)


def check_ids(task: Task, tokens: np.ndarray, targets: np.ndarray, vocab_size: int) -> None:
    """Refuse ids outside the vocabulary on the host: on a GPU they would end the process.

    Raises:
        ValueError: names the task and the id.
    """
    # Of the targets, ignored ones are no ids.
    least = min(tokens.min(), targets.min(initial=0, where=targets != IGNORED))
    most = max(tokens.max(), targets.max())
    if least < 0 or most >= vocab_size:
        worst = least if least < 0 else most
        raise ValueError(f"task {type(task).__name__} made token id {worst}, outside the vocabulary [0, {vocab_size})")


def check_shares(task: Task, targets: np.ndarray, world_size: int) -> None:
    """Refuse a batch (N, B, T) whose ranks would count different numbers of targets.

    Raises:
        ValueError: names the task and the numbers.
    """
    if targets.shape[1] % world_size:
        return
    by_rank = (targets != IGNORED).reshape(len(targets), world_size, -1).sum(axis=(0, 2))
    if by_rank.min() != by_rank.max():
        raise ValueError(
            f"task {type(task).__name__} made a batch whose rows count unlike many targets, "
            f"{by_rank.min()} to {by_rank.max()} a rank; train on one device, "
            "for the mean of the ranks' losses would not be the batch's"
        )


class StepSampler(Sampler[int]):
    """The numbers of the batches of one epoch: update ``s`` always takes batch ``s``, also after a resume within it.

    Args:
        steps_per_epoch: how many.
        position: the number of updates so far, asked when an epoch begins.
    """

    def __init__(self, steps_per_epoch: int, position: Callable[[], int]) -> None:
        self.steps_per_epoch = steps_per_epoch
        self.position = position

    def __iter__(self) -> Iterator[int]:
        start = self.position()
        return iter(range(start, (start // self.steps_per_epoch + 1) * self.steps_per_epoch))

    def __len__(self) -> int:
        return self.steps_per_epoch


class FixedBatches(Dataset[TensorBatch]):
    """The first ``n_examples`` of a stream, made once and kept: validation asks for them every epoch.

    Args:
        stream: where they come from.
        n_examples: how many, in all.
        lengths: each gets its equal share of the examples, the first ones one more where it does not come out even.
    """

    def __init__(self, stream: BatchStream, n_examples: int, lengths: Collection[int]) -> None:
        self.batches: list[TensorBatch] = []
        step = 0
        for index, length in enumerate(lengths):
            wanted = n_examples // len(lengths) + (index < n_examples % len(lengths))
            while wanted > 0:
                tokens, targets = stream.batch(step, length)
                self.batches.append(TensorBatch(tokens[:wanted], targets[:wanted]))
                wanted -= len(tokens)
                step += 1

    def __getitem__(self, index: int) -> TensorBatch:
        return self.batches[index]

    def __len__(self) -> int:
        return len(self.batches)


def outlive_signals(worker: int) -> None:
    """Go on making batches when everything that belongs to a run is told to stop: its main process ends the step.

    Args:
        worker: number of this data worker.
    """
    for number in stopping_signals():
        signal.signal(number, signal.SIG_IGN)
    # Also what ends a worker that is not wanted any more, so that it has to end: by itself, a little later.
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(WORKER_GRACE_SECONDS))


def loader(dataset: Any, sampler: Any, num_workers: int) -> DataLoader[Any]:
    """A loader whose every item is a whole batch already.

    Args:
        dataset: batches by number.
        sampler: which of them, in order.
        num_workers: processes that make them; 0: this one.
    """
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=sampler,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        # The loader draws a seed for its workers; from a generator of its own it leaves the global state alone.
        generator=torch.Generator().manual_seed(0),
        worker_init_fn=outlive_signals,
        pin_memory=torch.cuda.is_available(),
    )
