"""A small model, a probe, and what a diagnostic finds in them."""

import torch

from poslab.config.schema import DataConfig
from poslab.data.module import Probe, SeedData
from poslab.diagnostics import Diagnostic, Finding, Picture
from poslab.model import TinyAttentionLM
from poslab.positions import PositionScheme
from poslab.tasks.copy import CopyTask


def a_model(positions: PositionScheme | None = None, context: int = 12) -> TinyAttentionLM:
    return TinyAttentionLM(65, 32, 4, context, positions=positions).eval()


def a_probe(length: int = 6) -> Probe:
    task = CopyTask(64, length)
    sizes = DataConfig(batch_size=16, steps_per_epoch=1, val_examples=8, val_batch_size=8, num_workers=0)
    return SeedData(task, sizes, seed=0, vocab_size=task.vocab_size).probe


@torch.no_grad()
def findings(diagnostic: Diagnostic, model: TinyAttentionLM) -> list[Finding]:
    return list(diagnostic.look(model, a_probe()))


def pictures(diagnostic: Diagnostic, model: TinyAttentionLM) -> dict[str, Picture]:
    return {found.tag: found for found in findings(diagnostic, model) if isinstance(found, Picture)}
