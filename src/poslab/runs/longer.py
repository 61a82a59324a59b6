"""When a run may go on to a later end than it was started with: more epochs or steps, and nothing else."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from poslab.config.identity import differences, identity
from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError
from poslab.runs.names import SWEEP_FILE
from poslab.runs.settings import stored_settings

LENGTH = ("trainer.max_epochs", "trainer.max_steps")


def has_later_end(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether two identities differ only in the number of steps, and the second has more."""
    rest = [{key: value for key, value in one.items() if key not in LENGTH} for one in (before, now)]
    return not differences(*rest) and _total_steps(before) < _total_steps(now)


def goes_further(folder: Path, job: TrainConfig) -> bool:
    """Whether a job is the run in a folder with a later end.

    Raises:
        ConfigError: the folder is that of a sweep's job.
    """
    if not has_later_end(identity(stored_settings(folder)), identity(asdict(job))):
        return False
    if (folder.absolute().parent / SWEEP_FILE).exists():
        raise ConfigError(
            f"{folder} is a job of a sweep, which finds it by its settings, so it cannot get more steps there; go on "
            f"in a new folder by ckpt_path={folder / 'checkpoints/last.ckpt'}"
        )
    return True


def refused_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The settings in which two identities differ, with both values; empty if a run may go on with the second.

    It may with a later end, unless the schedule depends on it; then the reason is given.
    """
    changes = differences(before, now)
    if not changes or not has_later_end(before, now):
        return changes
    decay = now["optimizer.decay"]
    return "" if decay == "none" else f"{changes} (with optimizer.decay={decay} every rate depends on the last step)"


def _total_steps(settings: Mapping[str, Any]) -> int:
    """As `TrainConfig.total_steps`; 0 if the settings are not those of a run."""
    epochs, most, per_epoch = (settings.get(key) for key in (*LENGTH, "data.steps_per_epoch"))
    if not (isinstance(epochs, int) and isinstance(most, int) and isinstance(per_epoch, int)):
        return 0
    return epochs * per_epoch if most == -1 else most
