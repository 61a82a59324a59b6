"""A callback that passes each validation loss to a function, which may end the run."""

from collections.abc import Callable

import lightning
from lightning.pytorch.callbacks import Callback

from poslab.training.module import TrainingModule


class AfterValidation(Callback):
    """Calls a function after each validation.

    Args:
        report: gets the step, the last step of the training and the validation loss; an error that it raises ends the
            run.
    """

    def __init__(self, report: Callable[[int, int, float], None]) -> None:
        self.report = report

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        self.report(trainer.global_step, pl_module.total_steps, pl_module.validation["val/loss"])
