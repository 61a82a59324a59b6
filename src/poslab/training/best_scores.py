"""Scores the best weights of a run on the test set, at its end."""

import copy
import logging
from pathlib import Path

import lightning
import torch

from poslab.errors import ConfigError
from poslab.evaluation.metrics import score_all
from poslab.runs.checkpoint import checkpoint_content, model_weights
from poslab.runs.folder import RunFolder
from poslab.runs.names import COPIES
from poslab.system.files import MISSING
from poslab.training.module import TrainingModule
from poslab.training.replicas import Replica

log = logging.getLogger(__name__)


def log_test_scores(trainer: lightning.Trainer, module: TrainingModule, started_from: Path | None = None) -> None:
    """Log ``test/loss``, ``test/accuracy`` and ``test/exact_match``: the weights in ``best.ckpt`` on the test set.

    Each replica that has not diverged is scored with its own best weights. The numbers are logged at its last step.
    They are missing, with a warning, if no checkpoint holds the weights of the step with the lowest validation loss:
    the file was removed or damaged, or the run started from another run's checkpoint, had its best validation before
    that, and that run has another best one by now.

    Args:
        trainer: at the end of its fit, with the model still on its device.
        module: holds the models.
        started_from: folder of the run whose checkpoint this run started from by ``ckpt_path``.
    """
    if not trainer.is_global_zero:
        return
    for index, replica in enumerate(module.replicas):
        seen = module.observed(index, also_stopped=True)
        if seen is None:
            continue
        weights = best_weights(replica, started_from)
        if weights is None:
            continue
        model = copy.deepcopy(seen.model).eval()
        model.load_state_dict(weights)
        with trainer.precision_plugin.val_step_context():
            means = score_all(model, seen.data.test_set().batches).means()
        replica.log({f"test/{name}": value for name, value in means.items()}, replica.stopped or trainer.global_step)
    module.replicas.log_means(trainer.global_step)


def best_weights(replica: Replica, started_from: Path | None) -> dict[str, torch.Tensor] | None:
    """Read the weights of the step with the lowest validation loss, by name in the model; None if there are none."""
    step, folders = replica.table.best_step(), [replica.folder.path]
    if started_from is not None:
        own = replica.folder.path
        folders.append(started_from / COPIES / own.name if own.parent.name == COPIES else started_from)
    for folder in folders:
        path = RunFolder(folder).checkpoints / "best.ckpt"
        try:
            content = checkpoint_content(path)
            if content["global_step"] == step:
                return model_weights(content)
        except MISSING:
            continue
        except ConfigError:
            # The scores can be had when the file can be read; without them the run is not complete.
            raise
        except Exception as error:
            log.warning("%s cannot be read (%s)", path, type(error).__name__)
    log.warning("no test scores: no checkpoint holds the best weights, those of step %s", step)
    return None
