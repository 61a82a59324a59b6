"""The LightningModule of a bundle: one step of every copy at once, one set of numbers for each."""

import math
from typing import Any

import torch
from torch import Tensor

from poslab.config.schema import OptimizerConfig
from poslab.data.bundle import BundleBatch, BundleData
from poslab.errors import DivergedError
from poslab.evaluation.metrics import Score
from poslab.training.compiling import compiled
from poslab.training.module import Observed, TrainingModule, check_finite, log_scalars, losses_by_rank, own_losses
from poslab.training.replicas import Copies
from poslab.training.stack import ModelStack, clip_gradients, gradient_norms, losses, scores


class BundleModule(TrainingModule):
    """Trains the copies of a stack, each as `CopyModule` trains one model, and logs their means.

    A copy whose loss is no finite number any more is done with at that step: its parameters stay as they are, and no
    number of it reaches another copy. The others go on; without any the run has diverged.

    Args:
        stack: the models.
        copies: their folders and loggers, in the same order.
        optimizer, log_every_n_steps, total_steps: as in `TrainingModule`.
        compile: whether the training loss is compiled.
    """

    def __init__(
        self,
        stack: ModelStack,
        copies: Copies,
        optimizer: OptimizerConfig,
        log_every_n_steps: int,
        total_steps: int | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__(optimizer, log_every_n_steps, total_steps)
        self.stack = stack
        self._loss_by_copy = compiled(stack_losses, one_shape=True) if compile else stack_losses
        self.copies = copies
        self._losses_to_log: Tensor | None = None
        self._epoch_losses: list[Tensor] = []
        self._validation: list[Score] = []
        self._kept: list[Tensor] = []

    def observed(self, copy: int = 0) -> Observed | None:
        one = self.copies[copy]
        if one.diverged is not None:
            return None
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, BundleData)
        return Observed(self.stack.copy_of(copy), data.copies[copy], one.loggers)

    def training_step(self, batch: BundleBatch, batch_idx: int) -> Tensor:
        step = self.trainer.global_step
        for index in self.copies.well():
            self.copies[index].batches_by_seq_len[batch.seq_lens[index]] += 1
        drawn = self.stack.draw(batch.tokens, batch.seq_lens)
        by_copy = self._loss_by_copy(self.stack, batch.tokens, drawn, batch.targets)
        detached = by_copy.detach()
        due = step % self.log_every_n_steps == 0
        # As for a single model: reading a number from an accelerator waits for it.
        if due or detached.device.type == "cpu":
            self._check("train/loss", detached.tolist())
        if due:
            self._losses_to_log = detached
        self._epoch_losses.append(detached)
        # The sum: each copy's gradient is then its own, as if it were alone.
        return by_copy.index_fill(0, self._lost_rows(), 0.0).sum() if self.copies.lost() else by_copy.sum()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        lost = self.copies.lost()
        if not lost and self._losses_to_log is None:
            return
        parameters = [*self.parameters()]
        if lost:
            rows = self._lost_rows()
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.index_fill_(0, rows, 0.0)
            # A gradient of zero is not enough to stand still: Adam has its momentum, AdamW its decay.
            self._kept = [parameter.detach().index_select(0, rows) for parameter in parameters]
        if self._losses_to_log is not None:
            values = {
                "train/loss": self._losses_to_log.tolist(),
                "train/gradient_norm": gradient_norms(parameters).tolist(),
                "learning_rate": [float(optimizer.param_groups[0]["lr"])] * len(self.copies),
            }
            self._losses_to_log = None
            self._log(values)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Each copy by the norm of its own gradient."""
        if gradient_clip_val:
            clip_gradients([*self.parameters()], float(gradient_clip_val))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._kept:
            rows = self._lost_rows()
            for parameter, kept in zip(self.parameters(), self._kept, strict=True):
                parameter.data.index_copy_(0, rows, kept)
            self._kept = []
        super().on_train_batch_end(outputs, batch, batch_idx)

    def on_validation_epoch_start(self) -> None:
        means = torch.stack(self._epoch_losses).mean(0).tolist()
        self._epoch_losses.clear()
        self._check("train/loss_epoch", means)
        self._log({"train/loss_epoch": means})

    def validation_step(self, batch: BundleBatch, batch_idx: int) -> None:
        self._validation.append(scores(self.stack(batch.tokens, batch.seq_lens), batch.targets))

    def on_validation_epoch_end(self) -> None:
        # For the checkpoint's choice of the best.
        self.validation = self._report_validation()
        self.log_dict(self.validation, logger=False)

    def _report_validation(self) -> dict[str, float]:
        total = Score(*(torch.stack(parts).sum(0) for parts in zip(*self._validation, strict=True)))
        self._validation.clear()
        by_copy = [Score(*(part[index] for part in total)).means() for index in range(len(self.copies))]
        values = {f"val/{name}": [means[name] for means in by_copy] for name in by_copy[0]}
        self._check("val/loss", values["val/loss"])
        self._log(values)
        well = self.copies.well()
        return {name: sum(column[index] for index in well) / len(well) for name, column in values.items()}

    def _check(self, name: str, values: list[float]) -> None:
        """Be done with each copy whose loss is no finite number.

        Raises:
            DivergedError: none is left.
        """
        if all(map(math.isfinite, values)):
            return
        step = self.trainer.global_step
        last: DivergedError | None = None
        for index in self.copies.well():
            try:
                check_finite(name, values[index], step)
            except DivergedError as error:
                last = error
                self.copies[index].diverged = str(error)
        if last is not None and not self.copies.well():
            raise DivergedError(f"all {len(self.copies)} copies have diverged, the last one so: {last}") from last

    def _lost_rows(self) -> Tensor:
        return torch.tensor(self.copies.lost(), device=self.device)

    def _log(self, values: dict[str, list[float]]) -> None:
        for index in self.copies.well():
            own = {name: column[index] for name, column in values.items()}
            log_scalars(self.trainer, own, self.copies[index].loggers)
        self.copies.share_means(self.trainer)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # Plain values only: a checkpoint has to load with weights_only=True.
        checkpoint["poslab"] = {
            "format": 1,
            "epoch_losses": losses_by_rank(self, self._epoch_losses),
            "copies": [
                {
                    "random_state": state,
                    "batches_by_seq_len": dict(copy.batches_by_seq_len),
                    "diverged": copy.diverged,
                }
                for copy, state in zip(self.copies, self.stack.random_states, strict=True)
            ],
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        stored = checkpoint["poslab"]["copies"]
        self._epoch_losses = own_losses(self, checkpoint["poslab"].get("epoch_losses"))
        self.stack.random_states = [one["random_state"] for one in stored]
        for copy, one in zip(self.copies, stored, strict=True):
            copy.batches_by_seq_len.update(one["batches_by_seq_len"])
            copy.diverged = one["diverged"]


def stack_losses(stack: ModelStack, tokens: Tensor, drawn: Tensor | None, targets: Tensor) -> Tensor:
    """`losses` of a stack that has drawn."""
    return losses(stack.logits(tokens, drawn), targets)
