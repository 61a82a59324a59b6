"""The folder of a sweep and the jobs that it lists."""

import hashlib
import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from poslab.config.identity import NOT_IN_IDENTITY, Role, differences, flat, identity, role_of, without
from poslab.config.overrides import job_overrides, key_of
from poslab.errors import ConfigError
from poslab.runs.names import CONFIG_FILE, EVENTS, SUPERSEDED, SWEEP_FILE, newest
from poslab.runs.settings import stored_settings
from poslab.system.files import check_writable, is_there

log = logging.getLogger(__name__)


@dataclass
class Job:
    """One combination of settings.

    Attributes:
        overrides: the settings of this job, as typed.
        key: of its resolved configuration; empty where it cannot be run.
        name: of its folder.
        reason: why it cannot be run, else empty.
        state: the status in its folder before this sweep began; ``new`` if there was none.
        settings: all of its resolved settings, flat; empty where it cannot be run, and in the plans of older versions.
    """

    overrides: list[str]
    key: str = ""
    name: str = ""
    reason: str = ""
    state: str = "new"
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def typed(self) -> str:
        """The overrides without those of Hydra and of the sweep."""
        return " ".join(job_overrides(self.overrides))


def sweep_folder(config: DictConfig) -> Path:
    """The folder of a new sweep, or the one that ``sweep.resume`` names.

    Raises:
        ConfigError: the new folder holds a sweep already, or the named one holds none.
    """
    new = Path(config.hydra.sweep.dir)
    wanted = config.sweep.resume
    typed = any(key_of(one) == "hydra.sweep.dir" for one in config.hydra.overrides.hydra)
    if typed and wanted not in (None, "latest") and Path(wanted).resolve() != new.resolve():
        raise ConfigError(
            f"sweep.resume={wanted} and hydra.sweep.dir={new} name two folders; leave hydra.sweep.dir out"
        )
    if wanted is None:
        check_writable(new, "hydra.sweep.dir")
        if is_there(new / SWEEP_FILE):
            raise ConfigError(f"{new} already holds a sweep; resume it by sweep.resume={new}, or choose another folder")
        return new
    if wanted == "latest":
        if (latest := newest(new.parent.glob(f"*/{SWEEP_FILE}"))) is None:
            raise ConfigError(f"sweep.resume=latest, but there is no sweep in {new.parent}")
        return latest
    if not is_there(Path(wanted) / SWEEP_FILE):
        raise ConfigError(f"sweep.resume={wanted} holds no sweep ({SWEEP_FILE} is missing); give the folder of one")
    return Path(wanted)


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one job, flat, without those of a whole sweep."""
    return without(flat(config), Role.HYDRA, Role.RESTART)


def settings_in(folder: Path) -> dict[str, Any]:
    """The settings that a job stored in its folder; empty if it was stopped before that.

    Raises:
        ConfigError: they cannot be read.
    """
    if not is_there(folder / CONFIG_FILE):
        return {}
    try:
        return settings_of(stored_settings(folder))
    except ConfigError as error:
        raise ConfigError(f"{error}; if it is damaged, move its folder away, and the job is run again") from error


def only(keys: Collection[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of these keys, and of the parts that these keys choose."""
    return {name: value for name, value in settings.items() if any(f"{name}.".startswith(f"{key}.") for key in keys)}


def short_hash(settings: Mapping[str, Any]) -> str:
    """Four characters that differ where the settings do."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:4]


def read_jobs(path: Path) -> list[Job]:
    """The jobs that an earlier start of a sweep listed in a file; empty if there is no file or it is damaged."""
    known = {one.name for one in fields(Job)}
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return [Job(**{key: value for key, value in entry.items() if key in known}) for entry in entries]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, AttributeError) as error:
        log.warning("%s cannot be read (%s); it is written again", path, type(error).__name__)
        return []


class EarlierJobs:
    """The jobs that an earlier start of a sweep has listed, to notice that the configuration files have changed.

    Args:
        folder: of the sweep.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._by_words = {words_of(job): job for job in read_jobs(folder / SWEEP_FILE)}

    def refuse_changes(self, job: Job) -> None:
        """Refuse a job whose words were typed before and meant other settings.

        Raises:
            ConfigError: names each setting that differs, with both values.
        """
        before = self._by_words.get(words_of(job))
        if before is None or before.key == job.key:
            return
        settings = before.settings or settings_in(self.folder / before.name)
        if settings and (changes := differences(identity(settings), identity(job.settings))):
            raise ConfigError(
                f"{self.folder} was started with other settings for {job.typed}: {changes}; change the configuration "
                "files back, or start a new sweep"
            )


def words_of(job: Job) -> frozenset[str]:
    """What was typed for a job and decides its result, in any order."""
    return frozenset(one for one in job.overrides if role_of(key_of(one)) not in NOT_IN_IDENTITY)


def refuse_other_settings(folder: Path, job: Job) -> None:
    """Refuse a folder whose run has other settings than the job that its name says.

    Raises:
        ConfigError: names each setting that differs, with both values.
    """
    settings = settings_in(folder)
    if settings and (changes := differences(identity(settings), identity(job.settings))):
        raise ConfigError(
            f"{folder} was trained with other settings than its name says: {changes}; move it away, and the job is run "
            "again"
        )


def supersede(folder: Path, name: str) -> None:
    """Move a failed job's folder aside and remove its events, which a dashboard would show as another run."""
    target = folder / SUPERSEDED
    target.mkdir(exist_ok=True)
    attempt = 1 + sum(1 for _ in target.glob(f"{name}-*"))
    aside = target / f"{name}-{attempt}"
    (folder / name).rename(aside)
    for events in aside.rglob(EVENTS):
        events.unlink()


def as_json(content: Any) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"
