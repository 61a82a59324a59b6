"""Ends a hopeless trial from inside its job: the job reports each validation loss, and Optuna's pruner decides.

A job finds its search through a file in the sweep's folder, so that this works in any launcher's process. Without the
file the job does not import Optuna.
"""

import json
from pathlib import Path
from typing import Any

from poslab.errors import ConfigError, PrunedError

PRUNING_FILE = "pruning.json"


def open_trial(folder: Path) -> "Trial | None":
    """The trial that a job belongs to; None where no search prunes this job.

    Args:
        folder: of the job.

    Raises:
        ConfigError: the file is damaged.
    """
    path = folder.parent / PRUNING_FILE
    try:
        search = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error}); resume the search, which writes it again") from error
    number = search["trials"].get(folder.name)
    return None if number is None else Trial(search, number, folder.parent)


class Trial:
    """A running trial of a search that prunes.

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

    def report(self, step: int, last_step: int, loss: float) -> None:
        """Store a validation loss and end the trial if it is behind the others.

        Raises:
            PrunedError: names the step and the loss.
        """
        try:
            # A pruner compares in the direction of the objective.
            self.storage.set_trial_intermediate_value(self.trial_id, step, loss if self.lower_is_better else -loss)
            hopeless = step < last_step and self.pruner.prune(self.study, self.storage.get_trial(self.trial_id))
        finally:
            self.storage.remove_session()
        if hopeless:
            raise PrunedError(f"pruned at step {step} of {last_step}: val/loss {loss:.4f} is behind the other trials")
