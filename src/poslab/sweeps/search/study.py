"""Opens the Optuna study of a search: a new one, or the stored one if it is of the same search."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf
from optuna.samplers import RandomSampler
from optuna.study import StudyDirection

from poslab.config.composing import is_setting_of_a_job
from poslab.config.identity import differences, identity
from poslab.config.overrides import key_of
from poslab.errors import ConfigError
from poslab.sweeps.search.options import JOURNAL_FILE, Options, open_storage, quiet
from poslab.sweeps.search.space import Parameter, check_same_space, stored_form
from poslab.sweeps.search.summary import JSON_FILE
from poslab.sweeps.sweep import Sweep
from poslab.system.files import MISSING, is_there, put_aside, read_file, write_atomically

log = logging.getLogger(__name__)


def open_study(sweep: Sweep, options: Options, space: Sequence[Parameter], fixed: Sequence[str]) -> optuna.Study:
    """A new study, or with ``sweep.resume`` the one that an earlier start of this search stored.

    Args:
        sweep: whose folder and name the study has.
        options: the objectives and the storage.
        space: what is searched.
        fixed: overrides that all trials share.

    Raises:
        ConfigError: there is no study to resume, or it is of another search.
    """
    folder = sweep.folder
    resumes = sweep.config.sweep.resume is not None
    description = {
        "objectives": [list(goal) for goal in options.goals],
        "space": stored_form(space),
        "settings": fixed_settings(sweep, fixed),
    }
    nothing = f"{folder} holds no search that can be resumed"
    if resumes and options.storage is None:
        try:
            repair_journal(folder / JOURNAL_FILE)
        except MISSING as error:
            raise ConfigError(
                f"{nothing} ({JOURNAL_FILE} is missing); give its hydra.sweeper.storage, or the folder of one"
            ) from error
    with quiet():
        storage = open_storage(options.database, folder)
        name = study_name(folder, optuna.get_all_study_names(storage)) if resumes else folder.absolute().name
        try:
            if resumes:
                study = optuna.load_study(study_name=name, storage=storage, sampler=RandomSampler())
            else:
                directions = [StudyDirection[goal.direction.upper()] for goal in options.goals]
                study = optuna.create_study(
                    study_name=name, storage=storage, directions=directions, sampler=RandomSampler()
                )
        except KeyError as error:
            raise ConfigError(f"{nothing} (hydra.sweeper.storage has no study '{name}')") from error
        except optuna.exceptions.DuplicatedStudyError as error:
            raise ConfigError(
                f"hydra.sweeper.storage={options.storage} holds a study '{name}' already; "
                f"resume it with sweep.resume={folder}, or choose another hydra.sweep.dir"
            ) from error
    if resumes:
        check_same(study.user_attrs, description, space, folder)
    else:
        for key, value in description.items():
            study.set_user_attr(key, value)
    return study


def repair_journal(path: Path) -> None:
    """Cut a journal back to its last whole record: a full disk leaves half of one, to which Optuna would append.

    Each trial that is lost is drawn again, and finds its job's folder as it left it.

    Raises:
        FileNotFoundError: there is no journal.
        ConfigError: it cannot be read now.
    """
    content, whole = read_file(path), 0
    for line in content.split(b"\n")[:-1]:
        try:
            json.loads(line)
        except ValueError:
            break
        whole += len(line) + 1
    lost = content[whole:]
    if not lost:
        return
    kept = f"; the whole file is kept as {put_aside(path).name}" if b"\n" in lost else ""
    write_atomically(path, content[:whole], durable=True)
    log.warning("%s is damaged; it is cut back to its last whole record%s", path, kept)


def study_name(folder: Path, stored: Sequence[str]) -> str:
    """The name of a search's study: that of its folder when the search was started.

    Args:
        folder: of the search, which may have been renamed.
        stored: names of all studies in the storage.

    Raises:
        ConfigError: the folder is a copy of another search's.
    """
    own = folder.absolute().name
    if own in stored:
        return own
    try:
        name = json.loads(read_file(folder / JSON_FILE))["study"]
    except (*MISSING, ValueError, TypeError, KeyError) as error:
        if isinstance(error, ConfigError):
            raise
        # A search that was stopped before its first result; a journal contains its study alone.
        name = stored[0] if len(stored) == 1 else own
    original = folder.absolute().with_name(str(name))
    if name != own and is_there(original / JSON_FILE):
        raise ConfigError(f"{folder} is a copy of {original}, whose study it would share; resume that one")
    return str(name)


def fixed_settings(sweep: Sweep, fixed: Sequence[str]) -> dict[str, Any]:
    """The settings that all trials share and that decide results, in the form in which JSON returns them."""

    def composed(overrides: Sequence[str]) -> Any:
        return OmegaConf.to_container(sweep.composer.load_sweep_config(sweep.config, list(overrides)), resolve=False)

    try:
        settings = identity(composed(fixed))
    except ConfigCompositionException:
        # Only some of the options that are searched have one of these settings; they are stored as typed.
        choices = [one for one in fixed if not is_setting_of_a_job(one)]
        typed = [one for one in fixed if is_setting_of_a_job(one)]
        settings = identity(composed(choices)) | {key_of(one): one.partition("=")[2] for one in typed}
    return dict(json.loads(json.dumps(settings)))


def check_same(before: dict[str, Any], now: dict[str, Any], space: Sequence[Parameter], folder: Path) -> None:
    """Refuse to resume a study of another search.

    Raises:
        ConfigError: names what differs, before and now.
    """
    if "settings" not in before:
        raise ConfigError(f"{folder} was stopped before its first trial; start a new search")
    if before["objectives"] != now["objectives"]:
        then, here = (", ".join(" ".join(goal) for goal in stored["objectives"]) for stored in (before, now))
        raise ConfigError(f"{folder} searches for {then}, not for {here}; start a new search")
    check_same_space(before["space"], space)
    if changes := differences(before["settings"], now["settings"]):
        raise ConfigError(f"{folder} cannot be resumed with other settings: {changes}; give the old ones")
