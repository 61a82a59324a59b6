"""When a run saves its checkpoints: after every epoch, within one at an interval, and on a signal to stop."""

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
from poslab.runs.metrics import MONITORED
from poslab.runs.table import MetricsTable
from poslab.system.files import is_there, write_atomically
from poslab.system.signals import DeferredSignals
from poslab.training.best_scores import log_test_scores
from poslab.training.module import TrainingModule
from poslab.training.payload import export
from poslab.training.replicas import Replicas

# Beside the checkpoints: pictures, events, the log.
SLACK_BYTES = 16 * 2**20


class DurableFiles(TorchCheckpointIO):
    """Writes a checkpoint beside its place, makes sure that it is on the disk, and renames it."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        file = io.BytesIO()
        torch.save(checkpoint, file)
        # Not getbuffer(): the traceback of a failed write would keep that view open while Python closes the file.
        write_atomically(Path(path), file.getvalue(), durable=True)


class Checkpoints(Checkpoint):
    """Keeps ``last.ckpt``, and as ``best.ckpt`` the one with the lowest validation loss; stops a run on a signal.

    On request also ``step_<n>.ckpt`` of each epoch and each ``every_n_steps``. A checkpoint that the clock or a signal
    asked for is not among them: a run that is stopped and resumes keeps the same ones as an undisturbed run.

    At the end of the run the best weights are scored on the test set.

    Of several replicas the run's own two files hold the whole training; each replica's hold its model alone.

    Lightning's ModelCheckpoint saves the last one only where it is also a new best, forgets the best of a folder that
    was moved, and in the last step of an epoch saves a state from which Lightning skips the validation.

    Args:
        folder: of the run.
        replicas: of the run.
        settings: that decide its result, flat; every checkpoint holds them.
        before_save: called with the Trainer before each checkpoint is written.
        signals: those that ask the run to stop.
        every_n_steps: updates from one checkpoint within an epoch to the next; None for none.
        every_minutes: the same by the clock.
        started_from: folder of the run whose checkpoint this run started from by ``ckpt_path``.
        keep: how many ``step_<n>.ckpt`` to keep, the newest ones; None for all.
    """

    def __init__(
        self,
        folder: RunFolder,
        replicas: Replicas,
        settings: Mapping[str, Any],
        before_save: Callable[[lightning.Trainer], None],
        signals: DeferredSignals,
        every_n_steps: int | None = None,
        every_minutes: float | None = None,
        started_from: Path | None = None,
        keep: int | None = 0,
    ) -> None:
        self.folder = folder
        self.replicas = replicas
        self.settings = dict(settings)
        self.before_save = before_save
        self.signals = signals
        self.every_n_steps = every_n_steps
        self.every_minutes = every_minutes
        self.started_from = started_from
        self.keep = keep
        self._saved_at = time.monotonic()

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        # A signal before the first step loses no training.
        self.signals.deliver()

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        # Lightning has just installed a handler that would end the process with exit code 0.
        self.signals.install()
        self._saved_at = time.monotonic()
        assert isinstance(pl_module, TrainingModule)
        if trainer.global_step:
            self._export(trainer, pl_module, only_missing=True)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        step = trainer.global_step
        if batch_idx + 1 == trainer.num_training_batches or step == pl_module.total_steps:
            # The epoch's checkpoint follows, after its validation.
            return
        asked = self._stop_asked(trainer)
        if asked or self._due(trainer, step):
            self._export_step(trainer, pl_module)
            self._save(trainer)
        if asked:
            self.signals.deliver()

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        # The replicas' own first: a run that is killed in between repeats this epoch and writes them again.
        self._export(trainer, pl_module)
        self._export_step(trainer, pl_module)
        # Rank 0 decides for all: only it has the table, and all have to write the same file.
        self._save(trainer, trainer.strategy.broadcast(is_best(self.replicas.means.table)))
        if trainer.global_step < pl_module.total_steps and self._stop_asked(trainer):
            self.signals.deliver()

    def on_fit_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        # Not at the end of the training loop, which a run that was stopped after its last step does not enter again.
        assert isinstance(pl_module, TrainingModule)
        self._export(trainer, pl_module, only_missing=True)
        log_test_scores(trainer, pl_module, self.started_from)

    def on_save_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        # A run that resumes here does not log these numbers again, so the checkpoint contains them too.
        tables = {}
        for files in self.replicas.all_files():
            tables[files.table.path.relative_to(self.folder.path).as_posix()] = files.save()
        # Plain values only: a checkpoint has to load with weights_only=True.
        checkpoint["run"] = {
            "settings": self.settings,
            "events": event_sizes(self.folder.path),
            "tables": tables,
        }

    def _stop_asked(self, trainer: lightning.Trainer) -> bool:
        """Whether a signal has asked any rank to stop."""
        asked = self.signals.pending is not None
        if trainer.world_size == 1:
            return asked
        # All ranks stop at the same step: one that went on would wait for the others.
        asked = trainer.strategy.reduce_boolean_decision(asked, all=False)
        if asked and self.signals.pending is None:
            self.signals.request_stop()
        return asked

    def _due(self, trainer: lightning.Trainer, step: int) -> bool:
        due = self.every_n_steps is not None and step % self.every_n_steps == 0
        if self.every_minutes is not None:
            late = time.monotonic() - self._saved_at >= 60 * self.every_minutes
            due = due or bool(late if trainer.world_size == 1 else trainer.strategy.broadcast(late))
        return due

    def _save(self, trainer: lightning.Trainer, is_best: bool = False) -> None:
        if self.folder.removed():
            # Saving would make the folder again, without a configuration.
            raise self.folder.lost()
        self.before_save(trainer)
        # The last one at the end: a run that is killed before that resumes from an older one and writes all again.
        names = [*self._kept(trainer), *(("best",) if is_best else ()), "last"]
        first, *others = (self.folder.checkpoints / f"{name}.ckpt" for name in names)
        trainer.save_checkpoint(first)
        if trainer.is_global_zero:
            prune(self.folder.checkpoints, self.keep)
            for path in others:
                write_atomically(path, first.read_bytes(), durable=True)
        self._saved_at = time.monotonic()

    def _kept(self, trainer: lightning.Trainer) -> list[str]:
        """The name of the checkpoint to keep of this step; empty if it is not due, or none is kept."""
        module, step = trainer.lightning_module, trainer.global_step
        assert isinstance(module, TrainingModule)
        ends = step == module.total_steps or step % trainer.num_training_batches == 0
        due = ends or (self.every_n_steps is not None and step % self.every_n_steps == 0)
        return [f"step_{step}"] if due and self.keep != 0 else []

    def _export_step(self, trainer: lightning.Trainer, module: TrainingModule) -> None:
        """Write the checkpoint to keep of this step, if there is one, of each active replica with its own folder."""
        for name in self._kept(trainer):
            for index in self.replicas.active():
                replica = self.replicas[index]
                if replica is not self.replicas.means:
                    model, settings = module.learner.model_of(index), model_settings(replica.job)
                    content = export(model, settings, trainer.global_step, trainer.current_epoch)
                    write_atomically(replica.folder.checkpoints / f"{name}.ckpt", content)
                    prune(replica.folder.checkpoints, self.keep)

    def _export(self, trainer: lightning.Trainer, module: TrainingModule, only_missing: bool = False) -> None:
        """Write the checkpoints of each active replica that has a folder of its own.

        Args:
            trainer: at the end of an epoch, or at the beginning or the end of a fit.
            module: holds the models.
            only_missing: write only what was lost before this part of the run and is the present state.
        """
        for index in self.replicas.active():
            replica = self.replicas[index]
            if replica is self.replicas.means:
                continue
            best = replica.table.best_step() == trainer.global_step if only_missing else is_best(replica.table)
            paths = [replica.folder.checkpoints / f"{name}.ckpt" for name in (("last", "best") if best else ("last",))]
            if only_missing:
                paths = [path for path in paths if not is_there(path)]
            if paths:
                model, settings = module.learner.model_of(index), model_settings(replica.job)
                content = export(model, settings, trainer.global_step, trainer.current_epoch)
                for path in paths:
                    write_atomically(path, content)


def is_best(table: MetricsTable) -> bool:
    """Whether the weights at the last validation are the best so far, see `MetricsTable.best_step`."""
    validated = [step for step, row in table.rows.items() if step and MONITORED in row]
    return not validated or table.best_step() == max(validated)


def prune(folder: Path, keep: int | None) -> None:
    """Remove all ``step_<n>.ckpt`` in a folder but the newest ones.

    Args:
        folder: of checkpoints.
        keep: how many to keep; 0 and None leave all.
    """
    if keep:
        numbered = {int(path.stem.removeprefix("step_")): path for path in folder.glob("step_*.ckpt")}
        for step in sorted(numbered)[:-keep]:
            numbered[step].unlink(missing_ok=True)


def room_for(model: LanguageModel, replicas: int, kept: int = 0) -> int:
    """Bytes that a run's files will take, roughly: its checkpoints, one more while it is written, and the rest.

    Args:
        model: of one replica.
        replicas: how many.
        kept: checkpoints of single steps.
    """
    parameters = 4 * sum(parameter.numel() for parameter in model.parameters()) * replicas
    # With the two moments of Adam; the exported ones of several replicas are without.
    checkpoints = (3 + kept) * 3 * parameters
    exports = (3 + kept) * parameters if replicas > 1 else 0
    return checkpoints + exports + SLACK_BYTES
