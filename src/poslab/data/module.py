"""The Lightning data module of one task: training stream, validation set and probe."""

from collections.abc import Collection
from typing import NamedTuple

import lightning
import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.utils.data import DataLoader

from poslab.config.schema import DataConfig
from poslab.data.stream import BatchStream, FixedBatches, StepSampler, TensorBatch, loader, on_device
from poslab.errors import ConfigError
from poslab.tasks import Task


class Probe(NamedTuple):
    """One fixed sequence that every heat map is drawn from, and the data it comes from for whoever needs more."""

    tokens: Int64[Tensor, "1 t"]
    labels: list[str]
    answer_cells: Bool[np.ndarray, "t t"]
    data: "TaskData"


class TaskData(lightning.LightningDataModule):
    """Training stream, fixed validation set and probe sequence of one task.

    Args:
        task: what to sample.
        config: sizes.
        seed: of this run; the validation set is the run's own, drawn from the same seed in another split.
        vocab_size: of the model; a batch with an id outside it is refused.
    """

    def __init__(self, task: Task, config: DataConfig, seed: int, vocab_size: int) -> None:
        super().__init__()
        self.task = task
        self.config = config
        self.seed = seed
        self.vocab_size = vocab_size
        self.validation = self.examples(config.n_val_examples(task.seq_len), task.lengths)
        longest = max(self.validation.batches, key=lambda batch: batch.tokens.shape[1])
        self.probe = self.probe_of(longest.tokens[:1])

    def examples(self, n_examples: int, lengths: Collection[int]) -> FixedBatches:
        """A fixed validation set of these lengths, also of lengths that training never sees.

        Raises:
            ValueError: a length that the task does not have.
        """
        # The generator follows the seed alone, so a set of one length is the same whichever others are asked for.
        stream = BatchStream(self.task, self.seed, "val", self.config.val_batch_size, self.vocab_size)
        return FixedBatches(stream, n_examples, lengths)

    def probe_of(self, tokens: Int64[Tensor, "1 t"]) -> Probe:
        """A sequence to look at, with its labels and where its answers stand."""
        labels = [self.task.token_label(int(token)) for token in tokens[0]]
        return Probe(tokens, labels, self.task.answer_cells(tokens[0].numpy()), self)

    def train_dataloader(self) -> DataLoader[TensorBatch]:
        world_size = self.trainer.world_size if self.trainer else 1
        if self.config.batch_size % world_size:
            raise ConfigError(
                f"data.batch_size={self.config.batch_size} cannot be split over {world_size} devices; choose a multiple"
            )
        rank = self.trainer.global_rank if self.trainer else 0
        stream = BatchStream(
            self.task, self.seed, "train", self.config.batch_size, self.vocab_size, rank=rank, world_size=world_size
        )
        sampler = StepSampler(self.config.steps_per_epoch, self._updates_so_far)
        return loader(stream, sampler, self.config.num_workers)

    def transfer_batch_to_device(self, batch: TensorBatch, device: torch.device, dataloader_idx: int) -> TensorBatch:
        return TensorBatch(on_device(batch.tokens, device), on_device(batch.targets, device))

    def _updates_so_far(self) -> int:
        return self.trainer.global_step if self.trainer else 0

    def val_dataloader(self) -> DataLoader[TensorBatch]:
        return loader(self.validation, range(len(self.validation)), 0)
