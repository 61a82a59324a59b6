"""The LightningModule: what one step does and which numbers it reports."""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import lightning
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor

from poslab.config.schema import OptimizerConfig
from poslab.data.module import TaskData
from poslab.data.stream import TensorBatch
from poslab.errors import ConfigError, DivergedError
from poslab.evaluation.metrics import Score, score, token_loss
from poslab.model import LanguageModel
from poslab.training.compiling import compiled
from poslab.training.sharding import Whole, total_norm

ALGORITHMS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


class Observed(NamedTuple):
    """What a diagnostic looks at, and where the numbers that it finds go."""

    model: LanguageModel
    data: TaskData
    loggers: Sequence[Logger]


class TrainingModule(lightning.LightningModule):
    """What training one model and training several copies of it at once have in common: optimiser, schedule, end.

    Every number is logged at the step ``s`` = optimiser updates so far, and describes the model after ``s`` updates.

    Args:
        optimizer: algorithm, rate and schedule.
        log_every_n_steps: steps from one logged training loss to the next.
        total_steps: updates after which the training ends, also within an epoch; all that the Trainer plans if None.
    """

    def __init__(self, optimizer: OptimizerConfig, log_every_n_steps: int, total_steps: int | None = None) -> None:
        super().__init__()
        self.optimizer_config = optimizer
        self.log_every_n_steps = log_every_n_steps
        self._total_steps = total_steps
        self.validation: dict[str, float] = {}
        """What the last validation found, by tag."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_current_fx_name":
            # Set by Lightning thirty times a step; a module's own way first looks for parameters in it.
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    @property
    def total_steps(self) -> int:
        """Updates after which the training ends."""
        return int(self.trainer.estimated_stepping_batches) if self._total_steps is None else self._total_steps

    @abstractmethod
    def observed(self, copy: int = 0) -> Observed | None:
        """What the diagnostics of one copy look at; None for a copy that has diverged."""

    @abstractmethod
    def _report_validation(self) -> dict[str, float]:
        """Log what the validation steps have found, and forget it."""

    def configure_optimizers(self) -> OptimizerLRScheduler:
        config = self.optimizer_config
        optimizer = ALGORITHMS[config.algorithm](
            self.parameters(),
            lr=config.lr,
            betas=(config.betas[0], config.betas[1]),
            weight_decay=config.weight_decay,
            # One kernel for all parameters: of a small model the others take a sixth of the step.
            fused=True,
        )
        if config.warmup_steps == 0 and config.decay == "none":
            return optimizer
        factor = LearningRateFactor(config.warmup_steps, config.decay, self.total_steps)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        """Where the curves begin: the untrained model on the validation set."""
        if self.trainer.global_step:
            return
        loader = self.trainer.val_dataloaders or self.trainer.datamodule.val_dataloader()  # type: ignore[attr-defined]
        self.eval()
        with torch.no_grad(), self.trainer.precision_plugin.val_step_context():
            for batch in loader:
                self.validation_step(self.transfer_batch_to_device(batch, self.device, 0), 0)
        self.train()
        self._report_validation()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a state that is another model's, before Lightning fills in what fits.

        Raises:
            ConfigError: names the first difference.
        """
        if "state_dict" not in checkpoint:
            # That of a model which is shared among ranks has been loaded already, each rank's own part.
            return
        there, here = checkpoint["state_dict"], self.state_dict()
        for name in sorted(there.keys() | here.keys()):
            shapes = [tuple(one[name].shape) if name in one else "missing" for one in (there, here)]
            if shapes[0] != shapes[1]:
                raise ConfigError(
                    f"the checkpoint is another model's: {name} is {shapes[0]} there and {shapes[1]} here"
                )

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        # Not the Trainer's own max_steps: it leaves out the last validation, and does not resume exactly.
        if self.trainer.global_step == self._total_steps:
            self.trainer.should_stop = True


class CopyModule(TrainingModule):
    """Trains a language model on token targets.

    Args:
        model: from ids (B, T) to logits (B, T, V).
        optimizer, log_every_n_steps, total_steps: as in `TrainingModule`.
        settings: what the model was built from, flat and in plain values; every checkpoint holds them.
        compile: whether the training loss is compiled.
    """

    def __init__(
        self,
        model: LanguageModel,
        optimizer: OptimizerConfig,
        log_every_n_steps: int,
        total_steps: int | None = None,
        settings: Mapping[str, Any] | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__(optimizer, log_every_n_steps, total_steps)
        self.model = model
        self.whole = Whole(model)
        self.settings = dict(settings or {})
        self._loss = compiled(model_loss) if compile else model_loss
        self._loss_to_log: Tensor | None = None
        self._epoch_loss: list[Tensor] = []
        self._validation: list[Score] = []
        self.batches_by_seq_len: Counter[int] = Counter()
        """Batches trained on so far, by the tokens T of their rows."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids)

    def configure_model(self) -> None:
        # There is one where `trainer=fsdp` shares the model among the ranks.
        if self.device_mesh is not None:
            self.whole.share(self.device_mesh["data_parallel"], keeps=self.trainer.is_global_zero)

    def observed(self, copy: int = 0) -> Observed:
        return Observed(self.whole.model, self.trainer.datamodule, self.trainer.loggers)  # type: ignore[attr-defined]

    def training_step(self, batch: TensorBatch, batch_idx: int) -> Tensor:
        step = self.trainer.global_step
        self.batches_by_seq_len[batch.tokens.shape[1]] += 1
        loss = self._loss(self.model, batch.tokens, batch.targets)
        detached = loss.detach()
        due = step % self.log_every_n_steps == 0
        # Reading a number from an accelerator waits for it, so there the check runs on the logging interval.
        if due or detached.device.type == "cpu":
            # Of all ranks, so that all of them stop here; one that stopped alone would leave the others waiting.
            mean = self.trainer.strategy.reduce(detached.clone(), reduce_op="mean")
            check_finite("train/loss", float(mean), step)
            if due:
                self._loss_to_log = mean
        self._epoch_loss.append(detached)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._loss_to_log is not None:
            gradients = [p.grad for p in self.parameters() if p.grad is not None]
            values = {
                "train/loss": float(self._loss_to_log),
                "train/gradient_norm": total_norm(gradients),
                "learning_rate": float(optimizer.param_groups[0]["lr"]),
            }
            self._loss_to_log = None
            log_scalars(self.trainer, values)

    def on_validation_epoch_start(self) -> None:
        mean = self.trainer.strategy.reduce(torch.stack(self._epoch_loss).mean(), reduce_op="mean")
        self._epoch_loss.clear()
        check_finite("train/loss_epoch", float(mean), self.trainer.global_step)
        log_scalars(self.trainer, {"train/loss_epoch": float(mean)})

    def validation_step(self, batch: TensorBatch, batch_idx: int) -> None:
        self._validation.append(score(self.model(batch.tokens), batch.targets))

    def on_validation_epoch_end(self) -> None:
        # For the checkpoint's choice of the best; every rank has scored the whole set.
        self.validation = self._report_validation()
        self.log_dict(self.validation, logger=False, sync_dist=True)

    def _report_validation(self) -> dict[str, float]:
        total = Score(*(torch.stack(parts).sum() for parts in zip(*self._validation, strict=True)))
        self._validation.clear()
        values = {f"val/{name}": value for name, value in total.means().items()}
        check_finite("val/loss", values["val/loss"], self.trainer.global_step)
        log_scalars(self.trainer, values)
        return values

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        # Plain values only: a checkpoint has to load with weights_only=True.
        checkpoint["poslab"] = {
            "format": 1,
            "settings": self.settings,
            "random_state": torch.get_rng_state(),
            "device_random_state": device_random_state(self.device),
            "batches_by_seq_len": dict(self.batches_by_seq_len),
            "epoch_loss": losses_by_rank(self, self._epoch_loss),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        stored = checkpoint["poslab"]
        # Dropout goes on with the numbers it would have drawn.
        torch.set_rng_state(stored["random_state"])
        if stored.get("device_random_state") is not None:
            torch.cuda.set_rng_state(stored["device_random_state"], self.device)
        self.batches_by_seq_len = Counter(stored.get("batches_by_seq_len", {}))
        self._epoch_loss = own_losses(self, stored.get("epoch_loss"))


def device_random_state(device: torch.device) -> Tensor | None:
    """What a GPU draws its dropout from; None for a CPU, which draws from torch's own."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def losses_by_rank(module: lightning.LightningModule, losses: Sequence[Tensor]) -> Tensor | None:
    """What a checkpoint keeps of an epoch's losses so far: (ranks, steps, ..); None where there are none."""
    if not losses:
        return None
    own = torch.stack([*losses])
    by_rank = module.all_gather(own) if module.trainer.world_size > 1 else own[None]
    assert isinstance(by_rank, Tensor)
    return by_rank.cpu()


def own_losses(module: lightning.LightningModule, by_rank: Tensor | None) -> list[Tensor]:
    """This rank's part of `losses_by_rank`."""
    return [] if by_rank is None else [*by_rank[module.global_rank].to(module.device)]


def model_loss(model: LanguageModel, tokens: Tensor, targets: Tensor) -> Tensor:
    """`token_loss` of a model."""
    return token_loss(model(tokens), targets)


def log_scalars(trainer: lightning.Trainer, values: dict[str, float], loggers: Sequence[Logger] | None = None) -> None:
    """Send numbers to loggers (none, one or several; the Trainer's if None) at the step = optimiser updates so far."""
    if trainer.is_global_zero:
        for logger in trainer.loggers if loggers is None else loggers:
            logger.log_metrics(values, step=trainer.global_step)


def check_finite(name: str, value: float, step: int) -> None:
    """Stop at the first loss that is no number any more.

    Raises:
        DivergedError: ``value`` is NaN or infinite.
    """
    if not math.isfinite(value):
        raise DivergedError(
            f"{name} is {value} at step {step}: the run has diverged; "
            "try a lower optimizer.lr, optimizer.warmup_steps or trainer.gradient_clip_norm"
        )


class LearningRateFactor:
    """The schedule as a factor on the rate: linear warm-up, then constant, linear or cosine decay to zero.

    Update ``s`` (from 0) of ``total`` has factor ``(s + 1) / (warmup + 1)`` while ``s < warmup``; after that, with
    ``u = (s - warmup) / (total - warmup)``, linear is ``1 - u`` and cosine ``(1 + cos(pi u)) / 2``.
    """

    def __init__(self, warmup: int, decay: str, total: int) -> None:
        self.warmup = warmup
        self.decay = decay
        self.total = total

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        progress = min(1.0, (step - self.warmup) / max(1, self.total - self.warmup))
        return DECAYS[self.decay](progress)


def _constant(progress: float) -> float:
    return 1.0


def _linear(progress: float) -> float:
    return 1.0 - progress


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


DECAYS = {"none": _constant, "linear": _linear, "cosine": _cosine}
