"""The batches of every copy of a bundle, each from the copy's own seed, side by side."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import lightning
import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from poslab.config.schema import DataConfig
from poslab.data.module import TaskData
from poslab.data.stream import BatchStream, StepSampler, check_ids, loader, on_device
from poslab.tasks import Task
from poslab.tasks.base import IGNORED, Batch


class BundleBatch(NamedTuple):
    """Token ids and targets of every copy, both (N, B, T), and how long each copy's rows are without the padding."""

    tokens: Int64[Tensor, "n b t"]
    targets: Int64[Tensor, "n b t"]
    seq_lens: tuple[int, ...]


def side_by_side(batches: Sequence[Batch], at_least: int = 0) -> BundleBatch:
    """One batch of every copy; what is shorter than the longest, or than ``at_least``, ends in tokens of no account."""
    seq_lens = tuple(batch.tokens.shape[1] for batch in batches)
    shape = len(batches), len(batches[0].tokens), max(*seq_lens, at_least)
    tokens, targets = np.zeros(shape, dtype=np.int64), np.full(shape, IGNORED)
    for copy, (batch, seq_len) in enumerate(zip(batches, seq_lens, strict=True)):
        tokens[copy, :, :seq_len], targets[copy, :, :seq_len] = batch
    return BundleBatch(torch.from_numpy(tokens), torch.from_numpy(targets), seq_lens)


class BundleStream(Dataset[BundleBatch]):
    """``stream[step]`` is that batch of every copy, in rows of at least so many tokens.

    Raises:
        ValueError: on access, a batch with a token or target outside the vocabulary.
    """

    def __init__(self, streams: Sequence[BatchStream], at_least: int = 0) -> None:
        self.streams = streams
        self.at_least = at_least

    def __getitem__(self, step: int) -> BundleBatch:
        whole = side_by_side([stream.sample(step) for stream in self.streams], self.at_least)
        # Once for all copies: for each it takes a small batch half as long as making it.
        check_ids(self.streams[0].task, whole.tokens.numpy(), whole.targets.numpy(), self.streams[0].vocab_size)
        return whole


class BundleData(lightning.LightningDataModule):
    """Training streams and validation sets of several seeds.

    Args:
        task: what to sample.
        config: sizes; of each copy.
        seeds: of the copies.
        vocab_size: of the model.
        one_shape: have every training batch as long as the longest, for a compiler that takes no lengths that vary.
    """

    def __init__(
        self, task: Task, config: DataConfig, seeds: Sequence[int], vocab_size: int, one_shape: bool = False
    ) -> None:
        super().__init__()
        self.task = task
        self.config = config
        self.vocab_size = vocab_size
        self.at_least = task.seq_len if one_shape else 0
        self.copies = [TaskData(task, config, seed, vocab_size) for seed in seeds]
        own = zip(*(copy.validation.batches for copy in self.copies), strict=True)
        self.validation = [
            side_by_side([Batch(tokens.numpy(), targets.numpy()) for tokens, targets in batches]) for batches in own
        ]

    def train_dataloader(self) -> DataLoader[Any]:
        sizes = self.config.batch_size, self.vocab_size
        streams = [BatchStream(self.task, copy.seed, "train", *sizes) for copy in self.copies]
        stream = BundleStream(streams, self.at_least)
        sampler = StepSampler(self.config.steps_per_epoch, self._updates_so_far)
        return loader(stream, sampler, self.config.num_workers)

    def transfer_batch_to_device(self, batch: BundleBatch, device: torch.device, dataloader_idx: int) -> BundleBatch:
        tokens, targets = on_device(batch.tokens, device), on_device(batch.targets, device)
        return batch._replace(tokens=tokens, targets=targets)

    def _updates_so_far(self) -> int:
        return self.trainer.global_step if self.trainer else 0

    def val_dataloader(self) -> DataLoader[Any]:
        return loader(self.validation, range(len(self.validation)), 0)
