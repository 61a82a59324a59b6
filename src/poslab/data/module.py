"""The data of one seed, and the Lightning data module that stacks the batches of several seeds."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypeVar

import lightning
import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.utils.data import DataLoader

from poslab.config.schema import DataConfig
from poslab.data.met import MetByReplica, MetRows, ValidationRows
from poslab.data.stream import (
    BLOCK,
    BatchStream,
    FixedBatches,
    ReplicaBatch,
    ReplicaStream,
    StepSampler,
    UpdateBatches,
    on_device,
    side_by_side,
)
from poslab.data.workers import loader
from poslab.errors import ConfigError
from poslab.tasks import Task
from poslab.tasks.base import Batch

Batches = TypeVar("Batches", ReplicaBatch, list[ReplicaBatch])


class Probe(NamedTuple):
    """One fixed sequence, from which all heat maps are drawn, and the data it is from."""

    tokens: Int64[Tensor, "1 t"]
    labels: list[str]
    answer_cells: Bool[np.ndarray, "t t"]
    data: "SeedData"


class SeedData:
    """Training stream, fixed validation and test sets, and probe sequence of one task and one seed.

    Args:
        task: generates the rows.
        config: sizes and hold-out.
        seed: of the run; training, validation and test are different splits of the same seed.
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
        return self._stream("train", self.config.batch_size)

    def examples(self, n_examples: int, lengths: Collection[int], split: str = "val") -> FixedBatches:
        """Generate a fixed set of examples of these lengths, which may be outside the training range.

        The set of a single length depends only on the seed, the split and ``n_examples``.

        Raises:
            ValueError: the task does not support a length.
        """
        return FixedBatches(self._stream(split, BLOCK), n_examples, lengths, self.config.val_batch_size)

    def test_set(self) -> FixedBatches:
        """Generate the test set: as many examples as in validation, of the same lengths."""
        return self.examples(self.config.n_val_examples(self.task.seq_len), self.task.lengths, "test")

    def validation_rows(self, n_batches: int) -> ValidationRows:
        """Count the validation rows, and those that are in the first training batches, which are generated again."""
        met, stream = MetRows(self.validation), self.training_stream()
        for step in range(n_batches):
            met.add(stream.sample(step).tokens)
        return met.counts()

    def probe_of(self, tokens: Int64[Tensor, "1 t"]) -> Probe:
        """A sequence for the heat maps, with its labels and the cells of its answers."""
        labels = [self.task.token_label(int(token)) for token in tokens[0]]
        return Probe(tokens, labels, self.task.answer_cells(tokens[0].numpy()), self)

    def _stream(self, split: str, batch_size: int) -> BatchStream:
        return BatchStream(self.task, self.seed, split, batch_size, self.vocab_size, self.config.holdout)


class TaskData(lightning.LightningDataModule):
    """Training and validation batches of N >= 1 replicas, each from its own seed.

    Args:
        task: generates the rows.
        config: sizes for each replica, and the hold-out.
        seeds: of the replicas.
        vocab_size: of the model.
        one_shape: pad all training batches to the longest length, for a compiled step that needs a single shape.
        accumulate: batches of an update; with more than one, an item of the training data is the list of them.
    """

    def __init__(
        self,
        task: Task,
        config: DataConfig,
        seeds: Sequence[int],
        vocab_size: int,
        one_shape: bool = False,
        accumulate: int = 1,
    ) -> None:
        super().__init__()
        self.config = config
        self.accumulate = accumulate
        self.at_least = task.seq_len if one_shape else 0
        self.replicas = [SeedData(task, config, seed, vocab_size) for seed in seeds]
        self._met = MetByReplica([replica.validation for replica in self.replicas])
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
        batches = stream if self.accumulate == 1 else UpdateBatches(stream, self.accumulate)
        return loader(batches, sampler, self.config.num_workers)

    def val_dataloader(self) -> DataLoader[Any]:
        return loader(self.validation, range(len(self.validation)), 0)

    def transfer_batch_to_device(self, batch: Batches, device: torch.device, dataloader_idx: int) -> Batches:
        if isinstance(batch, list):
            return [self.transfer_batch_to_device(one, device, dataloader_idx) for one in batch]
        # Of several ranks, each has only its own rows.
        if self.trainer is not None and self.trainer.training and self.trainer.world_size == 1:
            self._met.add(batch)
        tokens, targets = on_device(batch.tokens, device), on_device(batch.targets, device)
        return batch._replace(tokens=tokens, targets=targets)

    def validation_rows(self, replica: int, n_steps: int) -> ValidationRows:
        """Count the validation rows of one replica, and those among its training rows so far.

        If this process has not had the training batches of all ``n_steps`` updates (several ranks, or a run that was
        resumed from a checkpoint of an older version), they are generated again.
        """
        n_batches = n_steps * self.accumulate
        if self._met.n_batches == n_batches:
            return self._met.counts(replica)
        return self.replicas[replica].validation_rows(n_batches)

    def state_dict(self) -> dict[str, Any]:
        return self._met.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._met.load_state_dict(state_dict)

    def _updates_so_far(self) -> int:
        return self.trainer.global_step if self.trainer else 0
