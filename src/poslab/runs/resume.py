"""Where a run begins: in a new folder, or after a checkpoint of a run that was stopped."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from poslab.config.identity import differences, identity
from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError
from poslab.runs.checkpoint import Saved, newest_checkpoint, read_checkpoint, run_folder_of
from poslab.runs.events import keep_events
from poslab.runs.folder import RunFolder
from poslab.runs.names import CONFIG_FILE, COPIES
from poslab.runs.result import stored_result, stored_status
from poslab.runs.settings import stored_settings
from poslab.system.files import write_atomically

log = logging.getLogger(__name__)


class Start(NamedTuple):
    """Where a run begins: at step 0, or after the updates that a checkpoint holds.

    Attributes:
        saved: the checkpoint to resume from.
        elsewhere: the checkpoint is in another run's folder.
        claimed: the folder belongs to this run already.
        seconds: what the run's earlier parts took.
    """

    saved: Saved | None = None
    elsewhere: bool = False
    claimed: bool = False
    seconds: float = 0.0

    @property
    def checkpoint(self) -> Path | None:
        return None if self.saved is None else self.saved.path

    @property
    def step(self) -> int:
        return 0 if self.saved is None else self.saved.step

    @property
    def origin(self) -> Path | None:
        """The folder of the other run that the checkpoint belongs to; None for a checkpoint of this run."""
        return run_folder_of(self.saved.path) if self.saved is not None and self.elsewhere else None

    @property
    def step_here(self) -> int | None:
        """The step up to which this folder has shown the run; None where it has shown nothing."""
        return None if self.saved is None or self.elsewhere else self.saved.step


def find_start(job: TrainConfig, folder: RunFolder) -> Start | None:
    """Where the run begins, with ``resume=auto`` after its newest checkpoint; None when it is complete. Writes nothing.

    Raises:
        ConfigError: the folder is another run's, or this run's with other settings; or the checkpoint is.
    """
    if not (job.resume and folder.taken()):
        saved = None if job.ckpt_path is None else named_checkpoint(job)
        return Start(saved, elsewhere=saved is not None)
    if folder.writes:
        # Rank 0 may be writing the file only now; that all ranks agree is checked when they meet.
        refuse_changes(folder, job)
    if stored_status(folder.path) == "completed":
        return None
    if (run := run_of_replica(folder.path)) is not None:
        raise ConfigError(f"{folder.path} is one replica of the run in {run}; resume that one, it holds them all")
    saved = newest_checkpoint(folder)
    elsewhere = saved is None and job.ckpt_path is not None
    if elsewhere:
        saved = named_checkpoint(job)
    elif saved is not None:
        refuse_foreign(saved, job)
    seconds = float(stored_result(folder.path).get("wall_seconds") or 0.0)
    return Start(saved, elsewhere, claimed=True, seconds=seconds)


def claim(folder: RunFolder, start: Start, job: TrainConfig, overrides: Sequence[str]) -> None:
    """Make the folder this run's own; from here on its ``result.json`` says that the run has not ended.

    Raises:
        ConfigError: the folder cannot be written, or another run was first.
    """
    if not folder.writes:
        return
    if start.claimed:
        folder.mark_unfinished(job, overrides, start.seconds)
    else:
        folder.check_usable()
        folder.claim(job, overrides)


def restore_files(folder: RunFolder, start: Start) -> None:
    """Bring the files of a claimed folder back to what they were when its checkpoint was saved."""
    if not folder.writes or not start.claimed:
        return
    folder.clear_parts()
    keep_events(folder.path, None if start.elsewhere else start.saved)
    last = folder.checkpoints / "last.ckpt"
    if start.saved is not None and not start.elsewhere and start.saved.path != last:
        # Killed between the two files of one save. If it was the final one, no later save would make them equal.
        write_atomically(last, start.saved.path.read_bytes(), durable=True)


def run_of_replica(folder: Path) -> Path | None:
    """The folder of the run that a folder is a replica of; None for any other."""
    parent = folder.absolute().parent
    return parent.parent if parent.name == COPIES and (parent.parent / CONFIG_FILE).exists() else None


def refuse_changes(folder: RunFolder, job: TrainConfig) -> None:
    """Refuse to resume with other settings than the run was started with.

    Raises:
        ConfigError: names each setting that differs, before and now.
    """
    if changes := differences(identity(stored_settings(folder.path)), identity(asdict(job))):
        raise ConfigError(
            f"{folder.path} cannot go on with other settings: {changes}; give the old ones or a new folder"
        )


def named_checkpoint(job: TrainConfig) -> Saved:
    """The checkpoint that ``ckpt_path`` names.

    Raises:
        ConfigError: there is none, it cannot be read, is another run's, or leaves nothing to train.
    """
    path = Path(str(job.ckpt_path))
    if not path.is_file():
        raise ConfigError(
            f"ckpt_path={path} is {'a folder' if path.is_dir() else 'not there'}; name a checkpoint's file"
        )
    try:
        saved = read_checkpoint(path)
    except Exception as error:
        raise ConfigError(
            f"ckpt_path={path} cannot be read ({type(error).__name__}); it is cut short, damaged, or no checkpoint"
        ) from error
    if saved.settings is None:
        raise ConfigError(
            f"ckpt_path={path} does not say which run it belongs to; name a run's own best.ckpt or last.ckpt"
        )
    refuse_foreign(saved, job)
    if saved.step >= job.total_steps:
        raise ConfigError(f"ckpt_path={path} holds all {saved.step} steps of its run; there is nothing left to train")
    return saved


def refuse_foreign(saved: Saved, job: TrainConfig) -> None:
    """Refuse to resume from the checkpoint of a run with other settings.

    Raises:
        ConfigError: names each setting that differs, there and here.
    """
    if saved.settings is not None and (changes := differences(saved.settings, identity(asdict(job)))):
        raise ConfigError(f"{saved.path} is a run's with other settings: {changes}; give the same ones")
