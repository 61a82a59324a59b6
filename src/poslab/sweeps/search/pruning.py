"""Ending a trial that has no hope, from inside its job: it reports its validation loss and is told whether to go on.

A job of a search finds the search through a file beside its folder, so that any launcher's process can. Optuna is
imported only where there is such a file.
"""

import json
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback

from poslab.errors import PrunedError
from poslab.training.module import TrainingModule

PRUNING_FILE = "pruning.json"
WATCHED = "val/loss"


def pruning_callbacks(folder: Path) -> list[Callback]:
    """A callback for a job whose search prunes; none for any other.

    Args:
        folder: of the job.
    """
    try:
        search = json.loads((folder.parent / PRUNING_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    number = search["trials"].get(folder.name)
    return [] if number is None else [Pruning(search, number, folder.parent)]


class Pruning(Callback):
    """Reports each validation to the search; raises when that is enough.

    Args:
        search: the content of ``pruning.json``.
        number: of the trial.
        folder: of the sweep.
    """

    def __init__(self, search: dict[str, Any], number: int, folder: Path) -> None:
        from optuna import load_study

        from poslab.sweeps.search.options import build_pruner, open_storage, quiet

        self.lower_is_better = search["lower_is_better"]
        self.pruner = build_pruner(search["pruner"], search["options"])
        self.storage = open_storage(search["storage"], folder)
        with quiet():
            self.study = load_study(study_name=search["study"], storage=self.storage, pruner=self.pruner)
        study_id = self.storage.get_study_id_from_name(search["study"])
        self.trial_id = self.storage.get_trial_id_from_study_id_trial_number(study_id, number)

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Report and ask.

        Raises:
            PrunedError: names the step and the loss.
        """
        assert isinstance(pl_module, TrainingModule)
        step, loss = trainer.global_step, pl_module.validation[WATCHED]
        # A pruner compares in the direction of the objective.
        self.storage.set_trial_intermediate_value(self.trial_id, step, loss if self.lower_is_better else -loss)
        total = pl_module.total_steps
        if step < total and self.pruner.prune(self.study, self.storage.get_trial(self.trial_id)):
            raise PrunedError(f"pruned at step {step} of {total}: {WATCHED} {loss:.4f} is behind the other trials")

    def teardown(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        self.storage.remove_session()
