"""Going on with a run that was stopped: what may differ, and from which checkpoint."""

import hashlib
import json
import logging
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from poslab.config import TrainConfig, flat
from poslab.ranks import is_second_rank
from poslab.results import CONFIG_FILE, COPIES, EVENTS, RESULT_FILE, RunFolder, write_atomically
from poslab.rules import ConfigError

log = logging.getLogger(__name__)

# What a run shows and how fast it goes, not what it computes: free to change from one start to the next.
PRESENTATION = (
    "resume",
    "ckpt_path",
    "sweep",
    "diagnostics",
    "logger",
    "trainer.progress_bar",
    "trainer.threads",
    "compile",
    "trainer.checkpoint_every_n_steps",
    "trainer.checkpoint_every_minutes",
    "data.num_workers",
)

# Settings that came later: with this value a run is the one that older versions made without them.
ALWAYS_SO = {"seeds": 1, "deterministic": False, "trainer.num_nodes": 1}


class Saved(NamedTuple):
    """A checkpoint that can be read.

    Attributes:
        path: of the file.
        step: optimiser updates that it holds.
        settings: those that decided its result, flat; None where the file does not say.
        events: size of each event file of the run when it was saved, by path in the run folder; None likewise.
    """

    path: Path
    step: int
    settings: dict[str, Any] | None = None
    events: dict[str, int] | None = None


class Start(NamedTuple):
    """Where a run begins: at step 0, or after the updates that a checkpoint holds.

    Attributes:
        saved: the checkpoint to go on from.
        elsewhere: it is another folder's.
        seconds: what the run's earlier parts took.
    """

    saved: Saved | None = None
    elsewhere: bool = False
    seconds: float = 0.0

    @property
    def checkpoint(self) -> Path | None:
        return None if self.saved is None else self.saved.path

    @property
    def step(self) -> int:
        return 0 if self.saved is None else self.saved.step

    @property
    def step_here(self) -> int | None:
        """The step up to which this folder has shown the run; None where it has nothing of it."""
        return None if self.saved is None or self.elsewhere else self.saved.step


def open_folder(job: TrainConfig, folder: RunFolder, overrides: Sequence[str]) -> Start | None:
    """Claim a new folder, or with ``resume=auto`` go on in one; None when its run is complete.

    Raises:
        ConfigError: the folder is another run's, or this run's with other settings; so is the checkpoint to go on from.
    """
    if not (job.resume and folder.taken()):
        saved = None if job.ckpt_path is None else named_checkpoint(job)
        if not is_second_rank():
            folder.check_usable()
            folder.claim(job, overrides)
        return Start(saved, elsewhere=saved is not None)
    if not is_second_rank():
        # The first rank may be writing the file only now; that all ranks agree is checked when they meet.
        refuse_changes(folder, job)
    if stored_status(folder.path) == "completed":
        return None
    if (bundle := bundle_of(folder.path)) is not None:
        raise ConfigError(f"{folder.path} is one copy of the run in {bundle}; go on with that one, it holds them all")
    saved = newest_checkpoint(folder)
    elsewhere = saved is None and job.ckpt_path is not None
    if elsewhere:
        saved = named_checkpoint(job)
    elif saved is not None:
        refuse_foreign(saved, job)
    seconds = float(stored_result(folder.path).get("wall_seconds") or 0.0)
    if not is_second_rank():
        folder.clear_parts()
        keep_events(folder.path, None if elsewhere else saved)
        last = folder.checkpoints / "last.ckpt"
        if saved is not None and not elsewhere and saved.path != last:
            # Killed between the two files of one save. If it was the final one, no later save would make them equal.
            write_atomically(last, saved.path.read_bytes(), durable=True)
        folder.mark_unfinished(job, overrides, seconds)
    return Start(saved, elsewhere, seconds)


def bundle_of(folder: Path) -> Path | None:
    """The folder of the bundle that a folder is a copy of; None for any other."""
    parent = folder.absolute().parent
    return parent.parent if parent.name == COPIES and (parent.parent / CONFIG_FILE).exists() else None


def run_folder_of(checkpoint: Path) -> Path:
    """The folder of the run that a checkpoint belongs to, if it lies where it was saved."""
    return checkpoint.absolute().parents[1]


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide the result, flat; two runs that agree in them are the same run."""
    return {
        key: value
        for key, value in flat(dict(settings)).items()
        if key != "defaults"
        and not any(key == part or key.startswith(f"{part}.") for part in PRESENTATION)
        and not (key in ALWAYS_SO and value == ALWAYS_SO[key])
    }


def model_settings(job: TrainConfig) -> dict[str, Any]:
    """The settings that the model is built from, flat: with others a checkpoint is another model's, even if it fits."""
    return flat({part: settings for part, settings in asdict(job).items() if part in ("pos", "task", "model")})


def job_key(job: TrainConfig) -> str:
    """A short name for the settings that decide the result: the same for the same job in every sweep."""
    text = json.dumps(identity(asdict(job)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def stored_settings(folder: Path) -> dict[str, Any]:
    """The settings in a run folder's ``config.yaml``.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    try:
        content = yaml.safe_load((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{folder / CONFIG_FILE} cannot be read ({type(error).__name__})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{folder / CONFIG_FILE} holds no configuration")
    return content


def stored_result(folder: Path) -> dict[str, Any]:
    """A run folder's ``result.json``; empty when there is none that can be read."""
    try:
        result = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return result if isinstance(result, dict) else {}


def stored_status(folder: Path) -> str | None:
    """The status in a run folder's ``result.json``; None when there is none that can be read."""
    return stored_result(folder).get("status")


def refuse_changes(folder: RunFolder, job: TrainConfig) -> None:
    """Refuse to go on with other settings than the run was started with.

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
    """Refuse to go on from the checkpoint of a run with other settings.

    Raises:
        ConfigError: names each setting that differs, there and here.
    """
    if saved.settings is not None and (changes := differences(saved.settings, identity(asdict(job)))):
        raise ConfigError(f"{saved.path} is a run's with other settings: {changes}; give the same ones")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Each setting that differs, as ``optimizer.lr was 0.005 and is 0.001``; empty where none does."""
    missing = "not set"
    return "; ".join(
        f"{key} was {before.get(key, missing)} and is {now.get(key, missing)}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key, missing) != now.get(key, missing)
    )


def read_checkpoint(path: Path) -> Saved:
    """What a checkpoint is, read as a whole, as plain values only.

    Raises:
        Exception: it is cut short, damaged, or no checkpoint.
    """
    import torch

    # torch itself does not notice a changed byte.
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"{damaged} is damaged")
    content = torch.load(path, map_location="cpu", weights_only=True)
    run = content.get("run") or {}
    return Saved(path, int(content["global_step"]), run.get("settings"), run.get("events"))


def step_of(checkpoint: Path) -> int:
    """Optimiser updates that a checkpoint holds."""
    return read_checkpoint(checkpoint).step


def newest_checkpoint(folder: RunFolder) -> Saved | None:
    """The checkpoint to go on from: of those that can be read, the one with most updates; the others are named."""
    found = []
    for path in (folder.checkpoints / "last.ckpt", folder.checkpoints / "best.ckpt"):
        try:
            found.append(read_checkpoint(path))
        except FileNotFoundError:
            continue
        except Exception as error:
            log.warning("%s cannot be read (%s); trying the one before", path, type(error).__name__)
    # Of two with the same, the first.
    return max(found, key=lambda saved: saved.step, default=None)


def keep_events(folder: Path, saved: Saved | None) -> None:
    """Leave of TensorBoard's files, also those of the copies of a bundle, what was there when a checkpoint was saved.

    Whatever came after it is about to come again, and a step that is shown twice runs back on itself. Without a
    checkpoint everything will. Pictures are drawn beside the training: one of an earlier step that came late stays.
    """
    if saved is not None and saved.events is None:
        return
    from poslab.loggers import cut_events

    for path in [*folder.glob(EVENTS), *folder.glob(f"{COPIES}/*/{EVENTS}")]:
        size = 0 if saved is None or saved.events is None else saved.events.get(path.relative_to(folder).as_posix(), 0)
        cut_events(path, size, 0 if saved is None else saved.step)


def event_sizes(folder: Path) -> dict[str, int]:
    """The size of each of TensorBoard's files in a run folder, in bytes, by path in the folder."""
    paths = [*folder.glob(EVENTS), *folder.glob(f"{COPIES}/*/{EVENTS}")]
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(paths)}
