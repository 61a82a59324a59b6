"""An attention model and a transformer with two layers, and data for them."""

from collections.abc import Iterator

import torch

from poslab.config.schema import DataConfig
from poslab.data.module import SeedData
from poslab.model import LanguageModel, TinyAttentionLM, TransformerLM
from poslab.positions import ALiBi
from poslab.tasks import Task
from poslab.tasks.copy import CopyTask


def models() -> Iterator[LanguageModel]:
    torch.manual_seed(3)
    yield TinyAttentionLM(65, 32, 4, 12, dropout=0.2)
    yield TinyAttentionLM(65, 12, 1, 12)
    yield TransformerLM(65, 16, 2, 3, 12, positions=ALiBi(2), dropout=0.2)


def some_data(task: Task | None = None, n: int = 24) -> SeedData:
    task = task or CopyTask(64, 6)
    return SeedData(task, DataConfig(batch_size=4, steps_per_epoch=1, val_examples=n, val_batch_size=16, num_workers=0),
                    seed=0, vocab_size=task.vocab_size)  # fmt: skip
