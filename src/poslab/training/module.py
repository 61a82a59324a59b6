"""The LightningModule: what one step does and which numbers it logs."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor

from poslab.config.schema import OptimizerConfig
from poslab.data.module import SeedData, TaskData
from poslab.data.stream import ReplicaBatch
from poslab.errors import DivergedError
from poslab.evaluation.metrics import Score
from poslab.model import LanguageModel
from poslab.training import payload
from poslab.training.decay import parameter_groups
from poslab.training.learner import Learner
from poslab.training.replicas import Replicas
from poslab.training.schedule import LearningRateFactor
from poslab.training.sharding import full
from poslab.training.stopping import StopWhen

log = logging.getLogger(__name__)

ALGORITHMS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


class Observed(NamedTuple):
    """What a diagnostic inspects, and where it logs."""

    model: LanguageModel
    data: SeedData
    loggers: Sequence[Any]


class TrainingModule(lightning.LightningModule):
    """Trains N >= 1 replicas, each as if it were alone, and logs the numbers of each and their means.

    Every number is logged at the step ``s`` = optimiser updates so far, and describes the models after ``s`` updates.
    A replica whose loss becomes NaN or infinite is frozen at that step, and one whose validation passes ``stop_when``
    after it; the others go on.

    Args:
        learner: the models.
        replicas: their folders and loggers, in the same order.
        optimizer: algorithm, rate and schedule.
        log_every_n_steps: steps from one logged training loss to the next.
        total_steps: updates after which the training ends, also within an epoch; all that the Trainer plans if None.
        gradient_clip_norm: the largest norm of a replica's gradient; None does not clip.
        settings: what the model was built from, flat and in plain values; every checkpoint holds them.
        stop_when: the condition on a replica's validation that stops it; None: none does.
    """

    def __init__(
        self,
        learner: Learner,
        replicas: Replicas,
        optimizer: OptimizerConfig,
        log_every_n_steps: int,
        total_steps: int | None = None,
        gradient_clip_norm: float | None = None,
        settings: Mapping[str, Any] | None = None,
        stop_when: StopWhen | None = None,
    ) -> None:
        super().__init__()
        # The whole step is `training_step`; Lightning's own refuses to clip with a fused optimiser under bf16.
        self.automatic_optimization = False
        self.learner = learner
        self.model = learner.module
        self.replicas = replicas
        self.optimizer_config = optimizer
        self.log_every_n_steps = log_every_n_steps
        self.gradient_clip_norm = gradient_clip_norm
        self.settings = dict(settings or {})
        self.epoch_losses: list[Tensor] = []
        """Of each step of this epoch so far: (N,)."""
        self.window_losses: list[Tensor] = []
        """Of each step since the last logged one: (N,)."""
        self.validation: dict[str, float] = {}
        """What the last validation found: the mean over the active replicas, by tag."""
        self.stop_when = stop_when
        self._total_steps = total_steps
        self._ended_at: int | None = None
        self._scores: list[Score] = []

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_current_fx_name":
            # Lightning sets it thirty times a step; torch's own `__setattr__` first searches it for parameters.
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    @property
    def total_steps(self) -> int:
        """Updates after which the training ends; once it has ended earlier than planned, those that it had."""
        if self._ended_at is not None:
            return self._ended_at
        return int(self.trainer.estimated_stepping_batches) if self._total_steps is None else self._total_steps

    def ends_here(self, replica: int = 0) -> bool:
        """Whether the present step is the last one of a replica."""
        step = self.trainer.global_step
        return step in (self.total_steps, self.replicas[replica].stopped)

    def observed(self, replica: int = 0, also_stopped: bool = False) -> Observed | None:
        """What the diagnostics of one replica inspect; None for one that has diverged or was stopped before."""
        one = self.replicas[replica]
        if one.diverged is not None or (one.frozen and not also_stopped):
            return None
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, TaskData)
        return Observed(self.learner.model_of(replica), data.replicas[replica], one.loggers)

    def configure_model(self) -> None:
        # Only `trainer=fsdp` has a mesh.
        if self.device_mesh is not None:
            self.learner.share(self.device_mesh["data_parallel"], keeps_whole=self.trainer.is_global_zero)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        config = self.optimizer_config
        optimizer = ALGORITHMS[config.algorithm](
            parameter_groups(self.learner.named_parameters(), self.learner.model_of(0), config),
            lr=config.lr,
            betas=(config.betas[0], config.betas[1]),
            # One kernel for all parameters.
            fused=True,
        )
        if config.warmup_steps == 0 and config.decay == "none":
            return optimizer
        factor = LearningRateFactor(config.warmup_steps, config.decay, self.total_steps)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, factor)]

    def training_step(self, batch: ReplicaBatch | list[ReplicaBatch], batch_idx: int) -> None:
        """One update of every active replica, by one batch or by the mean gradient of several."""
        optimizer, schedule = self.optimizers(), self.lr_schedulers()
        step = self.trainer.global_step
        if self.stop_when is not None:
            self.replicas.freeze_stopped(step + 1)
        # The last step too, so that the curve reaches the end.
        due = step % self.log_every_n_steps == 0 or step + 1 == self.total_steps
        optimizer.zero_grad()  # type: ignore[union-attr]
        losses = self._losses(batch)
        logged = self._watch(losses.detach(), due)
        frozen = self.replicas.inactive()

        # Outside autocast, as torch asks for the backward pass and the update.
        with torch.autocast(self.device.type, enabled=False):
            if frozen:
                losses = losses.index_fill(0, torch.tensor(frozen, device=losses.device), 0.0)
            # The sum: the gradient of each replica is then its own, as if it were alone.
            self.manual_backward(losses.sum())
            with self.learner.frozen(frozen):
                if due or self.gradient_clip_norm:
                    norms = self.learner.gradient_norms()
                if due:
                    rate = float(optimizer.param_groups[0]["lr"])  # type: ignore[union-attr]
                    self._log(
                        {
                            **logged,
                            "train/gradient_norm": full(norms).tolist(),
                            "learning_rate": [rate] * len(self.replicas),
                        },
                        step,
                    )
                if self.gradient_clip_norm:
                    self.learner.clip(norms, self.gradient_clip_norm)
                optimizer.step()  # type: ignore[union-attr]
        if schedule is not None:
            schedule.step()  # type: ignore[union-attr]

    def on_train_start(self) -> None:
        """Where the curves begin: the untrained models on the validation set."""
        if self.trainer.global_step:
            return
        loader = self.trainer.val_dataloaders or self.trainer.datamodule.val_dataloader()  # type: ignore[attr-defined]
        self.eval()
        with torch.no_grad(), self.trainer.precision_plugin.val_step_context():
            for batch in loader:
                self.validation_step(self.transfer_batch_to_device(batch, self.device, 0), 0)
        self.train()
        self._report_validation()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        # Not the Trainer's own max_steps: it leaves out the last validation, and does not resume exactly.
        if self.trainer.global_step == self._total_steps:
            self.trainer.should_stop = True

    def on_validation_epoch_start(self) -> None:
        step = self.trainer.global_step
        if self.trainer.should_stop and self.window_losses and step < self.total_steps:
            # A callback has ended the training early, after a step that was not known to be the last.
            self._log(self._logged_losses(self.window_losses[-1]), step - 1)
        means = self._over_ranks(torch.stack(self.epoch_losses).mean(0)).tolist()
        if step % self.trainer.num_training_batches == 0:
            self.epoch_losses.clear()
        self._freeze("train/loss_epoch", means)
        self._log({"train/loss_epoch": means}, step)

    def validation_step(self, batch: ReplicaBatch, batch_idx: int) -> None:
        self._scores.append(self.learner.scores(batch))

    def on_validation_epoch_end(self) -> None:
        values = self._report_validation()
        if self.stop_when is not None:
            self._stop(self.stop_when, values[self.stop_when.metric])
        if self.trainer.should_stop:
            self._ended_at = self.trainer.global_step

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[payload.KEY] = payload.state_of(
            self.settings,
            self.replicas,
            self.learner.random_states,
            self._by_rank(self.epoch_losses),
            self._by_rank(self.window_losses),
            self.device,
        )

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        payload.translate(checkpoint)
        # With a shared model each rank has loaded its own part already.
        if "state_dict" in checkpoint:
            payload.check_shapes(checkpoint["state_dict"], self.state_dict())
        if self._total_steps is not None and checkpoint["global_step"] < self._total_steps:
            payload.reopen(checkpoint)
        stored = checkpoint[payload.KEY]
        self.learner.random_states = payload.restore(stored, self.replicas, self.device)
        self.replicas.freeze_stopped(checkpoint["global_step"])
        if not self.replicas.go_on():
            self._ended_at, self.trainer.should_stop = checkpoint["global_step"], True
        self.epoch_losses, self.window_losses = (
            [] if by_rank is None else [*by_rank[self.global_rank].to(self.device)]
            for by_rank in (stored["epoch_losses"], stored["window_losses"])
        )

    def _losses(self, batch: ReplicaBatch | list[ReplicaBatch]) -> Tensor:
        """The losses (N,) of an update, with gradient; of several batches the mean.

        The gradients of all batches but the last have then been added up already, so that only one graph is in memory.
        """
        if isinstance(batch, ReplicaBatch):
            self.replicas.count_batch(batch.seq_lens)
            return self.learner.losses(batch)
        earlier = torch.zeros(len(self.replicas), device=self.device)
        for one in batch[:-1]:
            losses = self._losses(one) / len(batch)
            with torch.autocast(self.device.type, enabled=False):
                self.manual_backward(losses.sum())
            earlier += losses.detach()
        return earlier + self._losses(batch[-1]) / len(batch)

    def _watch(self, losses: Tensor, due: bool) -> dict[str, list[float]]:
        """Keep the losses (N,) of a step and freeze what diverged; returns what to log if the step is due."""
        self.epoch_losses.append(losses)
        self.window_losses.append(losses)
        if due:
            return self._logged_losses(losses)
        # Reading a number from an accelerator waits for it, so there the check runs on the logging interval.
        if losses.device.type == "cpu":
            # Over all ranks, so that all of them stop here; the others would wait for one that stopped alone.
            self._freeze("train/loss", self._over_ranks(losses).tolist())
        return {}

    def _logged_losses(self, losses: Tensor) -> dict[str, list[float]]:
        """The losses (N,) of a step and their means since the last logged step.

        The next window begins, unless this step is logged because it is the last one: the run may get more steps.
        """
        means = self._window(losses)
        step = self.trainer.global_step
        if step + 1 != self._total_steps or step % self.log_every_n_steps == 0:
            self.window_losses.clear()
        for name, mean in means.items():
            self._freeze(name, mean)
        return means

    def _window(self, losses: Tensor) -> dict[str, list[float]]:
        """The losses (N,) of a step and their means since the last logged step."""
        values = {"train/loss": losses, "train/loss_mean": torch.stack(self.window_losses).mean(0)}
        return {name: self._over_ranks(value).tolist() for name, value in values.items()}

    def _stop(self, condition: StopWhen, values: Sequence[float]) -> None:
        """Stop each replica whose value passes the condition, and the training when no other replica is left."""
        step = self.trainer.global_step
        passed = [index for index in self.replicas.active() if condition.holds(values[index])]
        # Rank 0 decides for all: the last digits of a GPU's numbers may differ.
        passed = self.trainer.strategy.broadcast(passed)
        for index in passed:
            self.replicas[index].stopped = step
            of = f"seed {self.replicas[index].seed} at " if len(self.replicas) > 1 else ""
            log.info("stop   %sstep %d of %d: %s", of, step, self.total_steps, condition)
        if passed and self.window_losses:
            # The last step of these was not known to be their last.
            last = self._window(self.window_losses[-1])
            for index in passed if self.trainer.is_global_zero else ():
                self.replicas[index].log({name: means[index] for name, means in last.items()}, step - 1)
        if not self.replicas.go_on():
            self.trainer.should_stop = True
            if self.trainer.is_global_zero:
                self.replicas.log_means(step - 1)

    def _report_validation(self) -> dict[str, list[float]]:
        """Log what the validation steps have found, and forget it; returns the values of all replicas by tag."""
        total = Score(*(torch.stack(parts).sum(0) for parts in zip(*self._scores, strict=True)))
        self._scores.clear()
        by_replica = [Score(*(part[index] for part in total)).means() for index in range(len(self.replicas))]
        values = {f"val/{name}": [means[name] for means in by_replica] for name in by_replica[0]}
        self._freeze("val/loss", values["val/loss"])
        self._log(values, self.trainer.global_step)
        active = self.replicas.active()
        self.validation = {
            name: sum(column[index] for index in active) / len(active) for name, column in values.items() if active
        }
        return values

    def _over_ranks(self, values: Tensor) -> Tensor:
        """The mean over the ranks."""
        if self.trainer.world_size == 1:
            return values
        mean = self.trainer.strategy.reduce(values.clone(), reduce_op="mean")
        assert isinstance(mean, Tensor)
        return mean

    def _by_rank(self, losses: list[Tensor]) -> Tensor | None:
        """The losses (N,) of several steps on every rank (ranks, steps, N); None where there are none."""
        if not losses:
            return None
        own = torch.stack(losses)
        by_rank = self.all_gather(own) if self.trainer.world_size > 1 else own[None]
        assert isinstance(by_rank, Tensor)
        return by_rank.cpu()

    def _freeze(self, name: str, values: Sequence[float]) -> None:
        """Mark each replica as diverged whose value is NaN or infinite.

        Raises:
            DivergedError: no active replica is left.
        """
        if all(map(math.isfinite, values)):
            return
        reasons = {
            index: divergence(name, values[index], self.trainer.global_step)
            for index in self.replicas.active()
            if not math.isfinite(values[index])
        }
        for index, reason in reasons.items():
            self.replicas[index].diverged = reason
        if any(replica.frozen for replica in self.replicas):
            # Where nothing is left to train, those that were stopped have completed the run.
            self.trainer.should_stop = self.trainer.should_stop or not self.replicas.go_on()
        elif not self.replicas.active():
            last = [*reasons.values()][-1]
            n = len(self.replicas)
            raise DivergedError(last if n == 1 else f"all {n} replicas have diverged, the last one so: {last}")

    def _log(self, values: Mapping[str, Sequence[float]], step: int) -> None:
        """Log one value of each replica under each name."""
        if self.trainer.is_global_zero:
            self.replicas.log(values, step)


def log_scalars(trainer: lightning.Trainer, values: Mapping[str, float], loggers: Sequence[Any]) -> None:
    """Log numbers at the step = optimiser updates so far; only rank 0 does."""
    if trainer.is_global_zero:
        for logger in loggers:
            logger.log_metrics(dict(values), step=trainer.global_step)


def divergence(name: str, value: float, step: int) -> str:
    """Says which loss was NaN or infinite, when, and what to try."""
    return (
        f"{name} is {value} at step {step}: the run has diverged; "
        "try a lower optimizer.lr, optimizer.warmup_steps or trainer.gradient_clip_norm"
    )
