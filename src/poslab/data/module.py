"""The batches of one seed, and the Lightning data module that puts those of several seeds side by side."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import lightning
import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.utils.data import DataLoader

from poslab.config.schema import DataConfig
from poslab.data.stream import (
    BatchStream,
    FixedBatches,
    ReplicaBatch,
    ReplicaStream,
    StepSampler,
    loader,
    on_device,
    side_by_side,
)
from poslab.errors import ConfigError
from poslab.tasks import Task
from poslab.tasks.base import Batch


class Probe(NamedTuple):
    """One fixed sequence that every heat map is drawn from, and the data it comes from."""

    tokens: Int64[Tensor, "1 t"]
    labels: list[str]
    answer_cells: Bool[np.ndarray, "t t"]
    data: "SeedData"


class SeedData:
    """Training stream, fixed validation set and probe sequence of one task and one seed.

    Args:
        task: what to sample.
        config: sizes.
        seed: of the run; its validation set is drawn from the same seed in another split.
        vocab_size: of the model; a batch with an id outside it is refused.
    """

    def __init__(self, task: Task, config: DataConfig, seed: int, vocab_size: int) -> None:
        self.task = task
        self.config = config
        self.seed = seed
        self.vocab_size = vocab_size
        self.validation = self.examples(config.n_val_examples(task.seq_len), task.lengths)
        longest = max(self.validation.batches, key=lambda batch: batch.tokens.shape[1])
        self.probe = self.probe_of(longest.tokens[:1])

    def training_stream(self) -> BatchStream:
        """The batches that the seed's model is trained on, by step."""
        return BatchStream(self.task, self.seed, "train", self.config.batch_size, self.vocab_size)

    def examples(self, n_examples: int, lengths: Collection[int]) -> FixedBatches:
        """A fixed validation set of these lengths, also of lengths that training never sees.

        Raises:
            ValueError: a length that the task does not have.
        """
        # The generator follows the seed alone, so a set of one length is the same whichever others are asked for.
        stream = BatchStream(self.task, self.seed, "val", self.config.val_batch_size, self.vocab_size)
        return FixedBatches(stream, n_examples, lengths)

    def probe_of(self, tokens: Int64[Tensor, "1 t"]) -> Probe:
        """A sequence to look at, with its labels and the cells of its answers."""
        labels = [self.task.token_label(int(token)) for token in tokens[0]]
        return Probe(tokens, labels, self.task.answer_cells(tokens[0].numpy()), self)


class TaskData(lightning.LightningDataModule):
    """Training and validation batches of N >= 1 replicas, each from its own seed.

    Args:
        task: what to sample.
        config: sizes; of each replica.
        seeds: of the replicas.
        vocab_size: of the model.
        one_shape: pad every training batch to the longest, for a compiler that takes no varying lengths.
    """

    def __init__(
        self, task: Task, config: DataConfig, seeds: Sequence[int], vocab_size: int, one_shape: bool = False
    ) -> None:
        super().__init__()
        self.config = config
        self.at_least = task.seq_len if one_shape else 0
        self.replicas = [SeedData(task, config, seed, vocab_size) for seed in seeds]
        by_replica = zip(*(replica.validation.batches for replica in self.replicas), strict=True)
        self.validation = [
            side_by_side([Batch(tokens.numpy(), targets.numpy()) for tokens, targets in batches])
            for batches in by_replica
        ]

    def train_dataloader(self) -> DataLoader[Any]:
        rank, world_size = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        if self.config.batch_size % world_size:
            raise ConfigError(
                f"data.batch_size={self.config.batch_size} cannot be split over {world_size} devices; choose a multiple"
            )
        streams = [replica.training_stream() for replica in self.replicas]
        stream = ReplicaStream(streams, self.at_least, rank=rank, world_size=world_size)
        sampler = StepSampler(self.config.steps_per_epoch, self._updates_so_far)
        return loader(stream, sampler, self.config.num_workers)

    def val_dataloader(self) -> DataLoader[Any]:
        return loader(self.validation, range(len(self.validation)), 0)

    def transfer_batch_to_device(self, batch: ReplicaBatch, device: torch.device, dataloader_idx: int) -> ReplicaBatch:
        tokens, targets = on_device(batch.tokens, device), on_device(batch.targets, device)
        return batch._replace(tokens=tokens, targets=targets)

    def _updates_so_far(self) -> int:
        return self.trainer.global_step if self.trainer else 0
