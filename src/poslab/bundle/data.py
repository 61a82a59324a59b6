"""The batches of every copy of a bundle, each from the copy's own seed, side by side."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import lightning
import torch
import torch.nn.functional as F
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from poslab.config import DataConfig
from poslab.data import BatchStream, StepSampler, TaskData, TensorBatch, loader
from poslab.tasks import Task
from poslab.tasks.base import IGNORED


class BundleBatch(NamedTuple):
    """Token ids and targets of every copy, both (N, B, T), and how long each copy's rows are without the padding."""

    tokens: Int64[Tensor, "n b t"]
    targets: Int64[Tensor, "n b t"]
    seq_lens: tuple[int, ...]


def side_by_side(batches: Sequence[TensorBatch], at_least: int = 0) -> BundleBatch:
    """One batch of every copy; what is shorter than the longest, or than ``at_least``, ends in tokens of no account."""
    seq_lens = tuple(batch.tokens.shape[1] for batch in batches)
    missing = [max(*seq_lens, at_least) - seq_len for seq_len in seq_lens]
    tokens, targets = [batch.tokens for batch in batches], [batch.targets for batch in batches]
    if any(missing):
        tokens = [F.pad(one, (0, n)) for one, n in zip(tokens, missing, strict=True)]
        targets = [F.pad(one, (0, n), value=IGNORED) for one, n in zip(targets, missing, strict=True)]
    return BundleBatch(torch.stack(tokens), torch.stack(targets), seq_lens)


class BundleStream(Dataset[BundleBatch]):
    """``stream[step]`` is that batch of every copy, in rows of at least so many tokens."""

    def __init__(self, streams: Sequence[BatchStream], at_least: int = 0) -> None:
        self.streams = streams
        self.at_least = at_least

    def __getitem__(self, step: int) -> BundleBatch:
        return side_by_side([stream.batch(step) for stream in self.streams], self.at_least)


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
        self.validation = [side_by_side(batches) for batches in own]

    def train_dataloader(self) -> DataLoader[Any]:
        sizes = self.config.batch_size, self.vocab_size
        streams = [BatchStream(self.task, copy.seed, "train", *sizes) for copy in self.copies]
        stream = BundleStream(streams, self.at_least)
        sampler = StepSampler(self.config.steps_per_epoch, self._updates_so_far)
        return loader(stream, sampler, self.config.num_workers)

    def _updates_so_far(self) -> int:
        return self.trainer.global_step if self.trainer else 0

    def val_dataloader(self) -> DataLoader[Any]:
        return loader(self.validation, range(len(self.validation)), 0)
