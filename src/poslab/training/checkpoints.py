"""When a run saves itself and how: after every epoch, in a long one every so often, and when it is told to stop."""

import io
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint

from poslab.config.identity import model_settings
from poslab.model import LanguageModel
from poslab.runs.events import event_sizes
from poslab.runs.folder import RunFolder
from poslab.runs.table import MetricsTable
from poslab.system.files import write_atomically
from poslab.system.signals import Hold
from poslab.training.module import TrainingModule
from poslab.training.payload import export
from poslab.training.replicas import Replicas

MONITORED = "val/loss"
# Beside the checkpoints: pictures, events, the log.
SLACK_BYTES = 16 * 2**20


class DurableFiles(TorchCheckpointIO):
    """Writes a checkpoint beside its place, makes sure that it is on the disk, and renames it."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        file = io.BytesIO()
        torch.save(checkpoint, file)
        write_atomically(Path(path), file.getbuffer(), durable=True)


class Checkpoints(Checkpoint):
    """Keeps ``last.ckpt``, and as ``best.ckpt`` the one with the lowest validation loss; stops a run on a signal.

    Of several replicas the run's own two files hold the whole training; each replica's hold its model alone.

    Lightning's ModelCheckpoint saves the last one only where it is also a new best, forgets the best of a folder that
    was moved, and in the last step of an epoch saves a state from which Lightning skips the validation.

    Args:
        folder: of the run.
        replicas: of the run.
        settings: that decide its result, flat; every checkpoint holds them.
        before_save: called with the Trainer before each checkpoint is written.
        hold: keeps the signals that tell it to stop.
        every_n_steps: updates from one checkpoint within an epoch to the next; None for none.
        every_minutes: the same by the clock.
    """

    def __init__(
        self,
        folder: RunFolder,
        replicas: Replicas,
        settings: Mapping[str, Any],
        before_save: Callable[[lightning.Trainer], None],
        hold: Hold,
        every_n_steps: int | None = None,
        every_minutes: float | None = None,
    ) -> None:
        self.folder = folder
        self.replicas = replicas
        self.settings = dict(settings)
        self.before_save = before_save
        self.hold = hold
        self.every_n_steps = every_n_steps
        self.every_minutes = every_minutes
        self._saved_at = time.monotonic()

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        # Nothing has been trained that could be lost.
        self.hold.deliver()

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        # Lightning has just put itself there, and would end with exit code 0.
        self.hold.listen()
        self._saved_at = time.monotonic()

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        step = trainer.global_step
        if batch_idx + 1 == trainer.num_training_batches or step == pl_module.total_steps:
            # The validation comes now, and then this epoch's checkpoint.
            return
        told = self._told(trainer)
        if told or self._due(trainer, step):
            self._save(trainer)
        if told:
            self.hold.deliver()

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        # The replicas' own first: a run that is killed in between repeats this epoch and writes them again.
        self._export(trainer, pl_module)
        # Rank 0 decides for all: only it has the table, and all have to write the same file.
        self._save(trainer, trainer.strategy.broadcast(is_best(self.replicas.means.table)))
        if trainer.global_step < pl_module.total_steps and self._told(trainer):
            self.hold.deliver()

    def on_save_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        # A run that goes on from here does not look again at what was seen here: first the numbers are written.
        for files in self.replicas.all_files():
            files.save()
        # Plain values only: a checkpoint has to load with weights_only=True.
        checkpoint["run"] = {"settings": self.settings, "events": event_sizes(self.folder.path)}

    def _told(self, trainer: lightning.Trainer) -> bool:
        """Whether this process, or one of the others that train with it, has been told to stop."""
        told = self.hold.told is not None
        if trainer.world_size == 1:
            return told
        # All of them at the same step, or they would wait for each other.
        told = trainer.strategy.reduce_boolean_decision(told, all=False)
        if told and self.hold.told is None:
            self.hold.tell()
        return told

    def _due(self, trainer: lightning.Trainer, step: int) -> bool:
        due = self.every_n_steps is not None and step % self.every_n_steps == 0
        if self.every_minutes is not None:
            late = time.monotonic() - self._saved_at >= 60 * self.every_minutes
            due = due or bool(late if trainer.world_size == 1 else trainer.strategy.broadcast(late))
        return due

    def _save(self, trainer: lightning.Trainer, is_best: bool = False) -> None:
        if not self.folder.taken():
            # It would be made again, with a checkpoint that no configuration belongs to.
            raise self.folder.lost()
        self.before_save(trainer)
        best, last = (self.folder.checkpoints / f"{name}.ckpt" for name in ("best", "last"))
        trainer.save_checkpoint(best if is_best else last)
        # The best one first: a run that is killed between the two goes on from there.
        if is_best and trainer.is_global_zero:
            write_atomically(last, best.read_bytes(), durable=True)
        self._saved_at = time.monotonic()

    def _export(self, trainer: lightning.Trainer, module: TrainingModule) -> None:
        """Write the checkpoints of each active replica that has a folder of its own."""
        for index in self.replicas.active():
            replica = self.replicas[index]
            if replica is self.replicas.means:
                continue
            model, settings = module.learner.model_of(index), model_settings(replica.job)
            content = export(model, settings, trainer.global_step, trainer.current_epoch)
            for name in ("last", "best") if is_best(replica.table) else ("last",):
                write_atomically(replica.folder.checkpoints / f"{name}.ckpt", content)


def is_best(table: MetricsTable) -> bool:
    """Whether the last validation loss of a table is its lowest, the untrained model's at step 0 left out."""
    losses = [row[MONITORED] for step, row in sorted(table.rows.items()) if step and MONITORED in row]
    return len(losses) < 2 or losses[-1] < min(losses[:-1])


def room_for(model: LanguageModel, replicas: int) -> int:
    """Bytes that a run's files will take, roughly: its checkpoints, one more while it is written, and the rest.

    Args:
        model: of one replica.
        replicas: how many.
    """
    parameters = 4 * sum(parameter.numel() for parameter in model.parameters()) * replicas
    # With the two moments of Adam; the exported ones of several replicas are without.
    checkpoints = 3 * 3 * parameters
    exports = 3 * parameters if replicas > 1 else 0
    return checkpoints + exports + SLACK_BYTES
