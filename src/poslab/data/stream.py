"""Batches for training, validation and test. Each depends only on (seed, split, step) and can be generated alone."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from poslab.data.rows import held_out
from poslab.tasks import Task
from poslab.tasks.base import IGNORED, Batch

SPLITS = {"train": 0, "val": 1, "test": 2}
BLOCK = 256
"""Rows that a validation or test set draws from one generator, whatever its batch size."""
MOST_REDRAWS = 50
"""With a hold-out: draw at most this many times the rows that should be needed."""


class TensorBatch(NamedTuple):
    """Token ids and targets of one seed, both (B, T) int64; targets of -100 are ignored in the loss."""

    tokens: Int64[Tensor, "b t"]
    targets: Int64[Tensor, "b t"]


class ReplicaBatch(NamedTuple):
    """Token ids and targets of all replicas, both (N, B, T), and the T of each replica's rows without padding."""

    tokens: Int64[Tensor, "n b t"]
    targets: Int64[Tensor, "n b t"]
    seq_lens: tuple[int, ...]


def on_device(ids: Tensor, device: torch.device) -> Tensor:
    """Copy ids to a device. Lightning's own transfer is slower: it searches every part of a batch."""
    return ids.to(device, non_blocking=device.type == "cuda")


class BatchStream:
    """The batches of one split and one seed. Batch ``step`` depends only on seed, split and step.

    Args:
        task: generates the rows.
        seed: of the run.
        split: ``train``, ``val`` or ``test``.
        batch_size: B, the rows of each batch.
        vocab_size: of the model.
        holdout: share of all rows that is held out of training, chosen by their hash (`held_out`). A training stream
            has none of them. A validation or test stream has only these at the lengths of training, and all rows at
            other lengths, which training never sees. None: no row is held out.
    """

    def __init__(
        self, task: Task, seed: int, split: str, batch_size: int, vocab_size: int, holdout: float | None = None
    ) -> None:
        self.task = task
        self.seed = seed
        self.split = split
        self.batch_size = batch_size
        self.vocab_size = vocab_size
        self.holdout = holdout

    def batch(self, step: int, length: int | None = None) -> TensorBatch:
        """Generate and check batch ``step``, with rows of one length; None draws a training length.

        Raises:
            ValueError: a token or target is outside the vocabulary, or `sample` failed.
        """
        tokens, targets = self.sample(step, length)
        check_ids(self.task, tokens, targets, self.vocab_size)
        return TensorBatch(torch.from_numpy(tokens), torch.from_numpy(targets))

    def sample(self, step: int, length: int | None = None) -> Batch:
        """Generate batch ``step`` without checking it.

        Raises:
            ValueError: the task does not support the length, or has too few rows for the hold-out; names the numbers.
        """
        # Each batch has its own generator, so other random draws cannot change the data.
        rng = np.random.default_rng([self.seed, SPLITS[self.split], step])
        if self.holdout is None:
            return self.task.sample(rng, self.batch_size, length)
        length = self.task.draw_length(rng) if length is None else length
        if length not in self.task.lengths:
            return self.task.sample(rng, self.batch_size, length)
        return self._sample_part(rng, length, self.holdout)

    def _sample_part(self, rng: np.random.Generator, length: int, holdout: float) -> Batch:
        """Draw rows until the batch is full, and keep those of this split's part."""
        share = 1 - holdout if self.split == "train" else holdout
        kept: list[Batch] = []
        n_kept = n_drawn = 0
        most = math.ceil(MOST_REDRAWS / share) * max(self.batch_size, BLOCK)
        while n_kept < self.batch_size:
            if n_drawn >= most:
                raise ValueError(
                    f"data.holdout={holdout:g} leaves too few rows for {self.split}: of {n_drawn:,} rows of length "
                    f"{length}, {n_kept} were in its part; use another share, more symbols, or data.holdout=null"
                )
            drawn = self.task.sample(rng, self.batch_size, length)
            rows = held_out(drawn.tokens, holdout) == (self.split != "train")
            kept.append(Batch(drawn.tokens[rows], drawn.targets[rows]))
            n_kept, n_drawn = n_kept + int(rows.sum()), n_drawn + self.batch_size
        return Batch(*(np.concatenate(part)[: self.batch_size] for part in zip(*kept, strict=True)))


def check_holdout(task: Task, holdout: float, batch_size: int, vocab_size: int) -> None:
    """Refuse a hold-out with which training or validation would have no rows at some training length.

    Raises:
        ValueError: names the share, the split, the length and the way out.
    """
    for split, n_rows in (("train", batch_size), ("val", BLOCK)):
        stream = BatchStream(task, 0, split, n_rows, vocab_size, holdout)
        for length in task.lengths:
            stream.sample(0, length)


class ReplicaStream(Dataset[ReplicaBatch]):
    """The training batches of all replicas: ``stream[step]`` is batch ``step`` of each, stacked along a first axis.

    Each rank generates the whole batch and keeps its own rows, so all ranks together train on the batch of one process.

    Args:
        streams: one per replica.
        at_least: pad rows to at least this many tokens.
        rank, world_size: choose the rows to keep.

    Raises:
        ValueError: on access: a token or target is outside the vocabulary, or the ranks would have different numbers
            of targets, so that the mean of their losses would differ from the loss of the batch.
    """

    def __init__(self, streams: Sequence[BatchStream], at_least: int = 0, rank: int = 0, world_size: int = 1) -> None:
        self.streams = streams
        self.at_least = at_least
        self.rank = rank
        self.world_size = world_size

    def __getitem__(self, step: int) -> ReplicaBatch:
        first = self.streams[0]
        whole = side_by_side([stream.sample(step) for stream in self.streams], self.at_least)
        # One check for all replicas: a check takes half as long as generating a batch.
        check_ids(first.task, whole.tokens.numpy(), whole.targets.numpy(), first.vocab_size)
        if self.world_size == 1:
            return whole
        check_shares(first.task, whole.targets.numpy(), self.world_size)
        n_rows = first.batch_size
        rows = slice(self.rank * n_rows // self.world_size, (self.rank + 1) * n_rows // self.world_size)
        return ReplicaBatch(whole.tokens[:, rows].clone(), whole.targets[:, rows].clone(), whole.seq_lens)


class UpdateBatches(Dataset[list[ReplicaBatch]]):
    """The batches of each update where one takes several: item ``step`` is batches ``n step`` to ``n step + n - 1``.

    Args:
        stream: the batches by number.
        n: batches of an update.
    """

    def __init__(self, stream: ReplicaStream, n: int) -> None:
        self.stream = stream
        self.n = n

    def __getitem__(self, step: int) -> list[ReplicaBatch]:
        return [self.stream[self.n * step + index] for index in range(self.n)]


def side_by_side(batches: Sequence[Batch], at_least: int = 0) -> ReplicaBatch:
    """Stack the batches of all replicas; rows are padded to the longest, or to ``at_least``, with ignored tokens."""
    seq_lens = tuple(batch.tokens.shape[1] for batch in batches)
    shape = len(batches), len(batches[0].tokens), max(*seq_lens, at_least)
    tokens, targets = np.zeros(shape, dtype=np.int64), np.full(shape, IGNORED)
    for replica, (batch, seq_len) in enumerate(zip(batches, seq_lens, strict=True)):
        tokens[replica, :, :seq_len], targets[replica, :, :seq_len] = batch
    return ReplicaBatch(torch.from_numpy(tokens), torch.from_numpy(targets), seq_lens)


def check_ids(task: Task, tokens: np.ndarray, targets: np.ndarray, vocab_size: int) -> None:
    """Refuse ids outside the vocabulary, before they are copied to a GPU, where they would abort the process.

    Raises:
        ValueError: names the task and the id.
    """
    # Ignored targets are not ids.
    least = min(tokens.min(), targets.min(initial=0, where=targets != IGNORED))
    most = max(tokens.max(), targets.max())
    if least < 0 or most >= vocab_size:
        worst = least if least < 0 else most
        raise ValueError(f"task {type(task).__name__} made token id {worst}, outside the vocabulary [0, {vocab_size})")


def check_shares(task: Task, targets: np.ndarray, world_size: int) -> None:
    """Refuse a batch (N, B, T) in which the ranks would have different numbers of targets.

    Raises:
        ValueError: names the task and the numbers.
    """
    if targets.shape[1] % world_size:
        return
    by_rank = (targets != IGNORED).reshape(len(targets), world_size, -1).sum(axis=(0, 2))
    if by_rank.min() != by_rank.max():
        raise ValueError(
            f"task {type(task).__name__} made a batch whose rows have different numbers of targets, "
            f"{by_rank.min()} to {by_rank.max()} a rank; train on one device, "
            "because the mean of the ranks' losses would differ from the batch's loss"
        )


class StepSampler(Sampler[int]):
    """The steps of one epoch. Update ``s`` always gets batch ``s``, also when a run resumes within an epoch.

    Args:
        steps_per_epoch: number of updates per epoch.
        position: returns the number of updates so far; called at the start of each epoch.
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
    """The first ``n_examples`` rows of a stream, generated once and kept for all validations.

    The rows depend on the stream alone: ``batch_size`` only says how they are grouped.

    Args:
        stream: generates the rows, in blocks of its own batch size.
        n_examples: number of rows in total.
        lengths: each gets an equal share of the rows; if they cannot be divided equally, the first get one more.
        batch_size: largest number of rows per batch; all rows of a batch have the same length.
    """

    def __init__(self, stream: BatchStream, n_examples: int, lengths: Collection[int], batch_size: int) -> None:
        self.batches: list[TensorBatch] = []
        drawn = 0
        for index, length in enumerate(lengths):
            wanted = n_examples // len(lengths) + (index < n_examples % len(lengths))
            if wanted == 0:
                continue
            blocks = [stream.batch(drawn + block, length) for block in range(math.ceil(wanted / stream.batch_size))]
            drawn += len(blocks)
            # Cloned: a slice would keep the memory of all rows that were drawn.
            tokens, targets = (torch.cat(part)[:wanted].clone() for part in zip(*blocks, strict=True))
            self.batches += map(TensorBatch, tokens.split(batch_size), targets.split(batch_size))

    def __getitem__(self, index: int) -> TensorBatch:
        return self.batches[index]

    def __len__(self) -> int:
        return len(self.batches)
