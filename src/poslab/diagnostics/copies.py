"""The diagnostics of a bundle: those of every copy, for the numbers, and of one of them the pictures too."""

from collections.abc import Sequence
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback

from poslab.bundle.module import BundleModule
from poslab.diagnostics.base import Diagnostic


class OfEachCopy(Callback):
    """The diagnostics of every copy of a bundle as one callback: Lightning takes its time over each that it has.

    All find their numbers, of which the bundle shows the mean; only the first copy's draw pictures. A diagnostic is
    called where `Diagnostic` itself acts and before each optimiser step, nowhere else.

    Args:
        by_copy: the diagnostics of each copy, in order of the copies.
    """

    def __init__(self, by_copy: Sequence[Sequence[Diagnostic]]) -> None:
        super().__init__()
        self.by_copy = by_copy
        for copy, diagnostics in enumerate(by_copy):
            for diagnostic in diagnostics:
                diagnostic.copy = copy
                if copy:
                    diagnostic.gallery = None
        self._all = [diagnostic for diagnostics in by_copy for diagnostic in diagnostics]
        own = [one for one in self._all if type(one).on_before_optimizer_step is not Callback.on_before_optimizer_step]
        self._before_steps = own

    def state_dict(self) -> dict[str, Any]:
        return {"copies": [{type(one).__qualname__: one.state_dict() for one in each} for each in self.by_copy]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for each, stored in zip(self.by_copy, state_dict["copies"], strict=True):
            for one in each:
                # Other diagnostics may be asked for when a run goes on.
                if type(one).__qualname__ in stored:
                    one.load_state_dict(stored[type(one).__qualname__])

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        for one in self._all:
            one.setup(trainer, pl_module, stage)

    def on_before_optimizer_step(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        for one in self._before_steps:
            one.on_before_optimizer_step(trainer, pl_module, optimizer)
        share_means(trainer, pl_module)

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        for one in self._all:
            one.on_train_start(trainer, pl_module)
        share_means(trainer, pl_module)

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        for one in self._all:
            one.on_validation_end(trainer, pl_module)
        share_means(trainer, pl_module)

    def on_train_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        for one in self._all:
            one.on_train_end(trainer, pl_module)
        share_means(trainer, pl_module)

    def on_fit_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        for one in self._all:
            one.on_fit_end(trainer, pl_module)
        share_means(trainer, pl_module)


def looking(trainer: lightning.Trainer, copy: int = 0) -> list[Diagnostic]:
    """The diagnostics of a run; of a bundle, those of one copy."""
    found: list[Diagnostic] = []
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Diagnostic):
            found.append(callback)
        elif isinstance(callback, OfEachCopy):
            found += callback.by_copy[copy]
    return found


def share_means(trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
    assert isinstance(module, BundleModule)
    module.copies.share_means(trainer)
