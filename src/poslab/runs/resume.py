"""Decides where a run begins, in a new folder or after a checkpoint, and restores the files of a stopped run."""

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from poslab.config.identity import identity
from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError
from poslab.runs.checkpoint import Saved, newest_checkpoint, read_checkpoint, run_folder_of
from poslab.runs.events import keep_events
from poslab.runs.folder import RunFolder
from poslab.runs.longer import goes_further, has_later_end, refused_changes
from poslab.runs.names import CONFIG_FILE, COPIES, METRICS_FILE
from poslab.runs.result import read_result, stored_status
from poslab.runs.settings import stored_settings
from poslab.runs.table import MetricsTable
from poslab.system.files import MISSING, is_there, put_aside, write_atomically
from poslab.system.shell import typed_path

log = logging.getLogger(__name__)


class Start(NamedTuple):
    """Where a run begins: at step 0 or at the step of a checkpoint.

    Attributes:
        saved: the checkpoint to resume from.
        elsewhere: the checkpoint is in another run's folder.
        claimed: this run has claimed the folder already.
        seconds: the duration of the run's earlier parts.
        longer: the run has a later end than before.
        damaged: files of this run that cannot be used; `claim` puts them aside.
        without_curves: folders whose event files have lost numbers; see `restore_files`.
    """

    saved: Saved | None = None
    elsewhere: bool = False
    claimed: bool = False
    seconds: float = 0.0
    longer: bool = False
    damaged: Sequence[Path] = ()
    without_curves: Sequence[Path] = ()

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
        """The step up to which this folder's files have the run's numbers; None if they have none."""
        return None if self.saved is None or self.elsewhere else self.saved.step


def find_start(job: TrainConfig, folder: RunFolder) -> Start | None:
    """Decide where the run begins; with ``resume=auto`` after its newest checkpoint.

    Locks the folder of a run that is to be resumed, and writes nothing.

    Returns:
        the start; None if the run is complete.

    Raises:
        ConfigError: the folder or the checkpoint belongs to another run, was made with other settings, cannot be read
            now, or is in use.
    """
    if not (job.resume and folder.taken()):
        saved = None if job.ckpt_path is None else named_checkpoint(job)
        return Start(saved, elsewhere=saved is not None)
    if folder.writes:
        # Only rank 0: it may be writing the file while the other ranks start. The ranks compare their jobs later.
        refuse_changes(folder, job)
    # Before the status, which rank 0 changes first.
    longer = goes_further(folder.path, job)
    result, damaged = read_result(folder.path)
    completed = result.get("status") == "completed"
    if completed and not longer:
        return None
    if (run := run_of_replica(folder.path)) is not None:
        raise ConfigError(f"{folder.path} is one replica of the run in {run}; resume that run")
    if folder.writes:
        folder.lock.acquire()
        # The process that held the lock may have completed it, or given it the later end.
        longer = goes_further(folder.path, job)
        if not damaged and stored_status(folder.path) == "completed" and not longer:
            return None
    saved, damaged_checkpoints = newest_checkpoint(folder)
    elsewhere = saved is None and job.ckpt_path is not None
    if elsewhere:
        saved = named_checkpoint(job)
    elif saved is not None:
        refuse_foreign(saved, job)
        # The process that gave it the later end may have been killed before its first checkpoint.
        longer = longer or has_later_end(saved.settings or {}, identity(asdict(job)))
    elif longer and completed:
        raise ConfigError(f"{folder.path} has no checkpoint to go on from; train the longer run in a new folder")
    seconds = float(result.get("wall_seconds") or 0.0)
    damaged = [*damaged, *damaged_checkpoints]
    return Start(saved, elsewhere, claimed=True, seconds=seconds, longer=longer, damaged=damaged)


def claim(folder: RunFolder, start: Start, job: TrainConfig, overrides: Sequence[str]) -> None:
    """Claim the folder for this run and write a ``result.json`` that says that the run has not ended.

    Raises:
        ConfigError: the folder cannot be written, or another run was first.
    """
    if not folder.writes:
        return
    for path in start.damaged:
        put_aside(path)
    if start.claimed:
        folder.claimed = True
        folder.mark_unfinished(job, overrides, start.seconds)
        if start.longer:
            folder.store(job)
    else:
        folder.check_usable()
        folder.claim(job, overrides)


def restore_files(folder: RunFolder, start: Start) -> Start:
    """Restore the files of a claimed folder to the state in which its checkpoint was saved.

    Returns:
        the start, with the folders whose curves have to be written again from the table.
    """
    if not folder.writes or not start.claimed:
        return start
    folder.clear_parts()
    saved = None if start.elsewhere else start.saved
    without_curves = keep_events(folder.path, saved)
    if saved is not None:
        restore_checkpoints(folder, saved)
    return start._replace(without_curves=without_curves)


def restore_checkpoints(folder: RunFolder, saved: Saved) -> None:
    """Write ``last.ckpt`` or ``best.ckpt`` again from the other one, where both contain the same step."""
    last, best = (folder.checkpoints / f"{name}.ckpt" for name in ("last", "best"))
    if saved.path != last:
        # The run was killed between writing best.ckpt and last.ckpt. After the final save no later one would repair it.
        write_atomically(last, saved.path.read_bytes(), durable=True)
    elif saved.tables is not None and not is_there(best):
        table = MetricsTable(folder.path)
        table.restore(saved.step, saved.tables[METRICS_FILE])
        if table.best_step() == saved.step:
            write_atomically(best, last.read_bytes(), durable=True)


def run_of_replica(folder: Path) -> Path | None:
    """The folder of the run that a replica's folder belongs to; None if the folder is not a replica's."""
    parent = folder.absolute().parent
    return parent.parent if parent.name == COPIES and is_there(parent.parent / CONFIG_FILE) else None


def refuse_changes(folder: RunFolder, job: TrainConfig) -> None:
    """Refuse to resume a run with other settings than it was started with.

    Raises:
        ConfigError: names each setting that differs, with both values.
    """
    if changes := refused_changes(identity(stored_settings(folder.path)), identity(asdict(job))):
        raise ConfigError(
            f"{folder.path} cannot be resumed with other settings: {changes}; give the old ones or a new folder"
        )


def named_checkpoint(job: TrainConfig) -> Saved:
    """Read the checkpoint that ``ckpt_path`` names.

    Raises:
        ConfigError: it does not exist, cannot be read, has other settings, or is of the last step.
    """
    path = typed_path(str(job.ckpt_path))
    if os.path.isdir(path):
        raise ConfigError(f"ckpt_path={path} is a folder; give the file of a checkpoint")
    try:
        saved = read_checkpoint(path)
    except MISSING as error:
        raise ConfigError(f"ckpt_path={path} does not exist; give the file of a checkpoint") from error
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"ckpt_path={path} cannot be read ({type(error).__name__}); it is cut short, damaged, or not a checkpoint"
        ) from error
    if saved.settings is None:
        raise ConfigError(
            f"ckpt_path={path} does not contain the settings of its run; give the best.ckpt or last.ckpt of a run"
        )
    refuse_foreign(saved, job)
    if saved.step >= job.total_steps:
        raise ConfigError(f"ckpt_path={path} is of the last step, {saved.step}; nothing is left to train")
    return saved


def refuse_foreign(saved: Saved, job: TrainConfig) -> None:
    """Refuse to resume from the checkpoint of a run with other settings.

    Raises:
        ConfigError: names each setting that differs, with both values.
    """
    if saved.settings is not None and (changes := refused_changes(saved.settings, identity(asdict(job)))):
        raise ConfigError(f"{saved.path} belongs to a run with other settings: {changes}; give the same ones")
