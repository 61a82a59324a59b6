"""What each copy of a bundle leaves while it trains: its table, and checkpoints that load as a single run's do."""

import io

import lightning
import torch
from lightning.pytorch.callbacks import Callback

from poslab.config.identity import model_settings
from poslab.system.files import write_atomically
from poslab.training.bundle import BundleModule


class CopyExports(Callback):
    """After each epoch ``last.ckpt`` of every copy that is well, and ``best.ckpt`` where its validation loss is lowest.

    They hold the model and no optimiser: a bundle goes on from its own checkpoint.
    """

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        assert isinstance(pl_module, BundleModule)
        for copy in pl_module.copies:
            copy.table.save()

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        assert isinstance(pl_module, BundleModule)
        for index in pl_module.copies.well():
            copy = pl_module.copies[index]
            model = pl_module.stack.copy_of(index)
            content = {
                # Cloned: a view would be saved with everything that it is a part of.
                "state_dict": {f"model.{name}": value.clone() for name, value in model.state_dict().items()},
                "global_step": trainer.global_step,
                "epoch": trainer.current_epoch,
                "poslab": {"format": 1, "settings": model_settings(copy.job)},
            }
            file = io.BytesIO()
            torch.save(content, file)
            # The untrained model's loss, at step 0, is none to be best.
            seen = [row["val/loss"] for step, row in copy.table.rows.items() if step and "val/loss" in row]
            best = ["best"] if len(seen) < 2 or seen[-1] < min(seen[:-1]) else []
            for name in ("last", *best):
                write_atomically(copy.folder.checkpoints / f"{name}.ckpt", file.getvalue())
