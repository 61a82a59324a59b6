"""Opens the Optuna study of a search: a new one, or the stored one if it is of the same search."""

import json
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
from poslab.sweeps.sweep import Sweep


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
    folder, name = sweep.folder, sweep.folder.absolute().name
    resumes = sweep.config.sweep.resume is not None
    description = {
        "objectives": [list(goal) for goal in options.goals],
        "space": stored_form(space),
        "settings": fixed_settings(sweep, fixed),
    }
    nothing = f"{folder} holds no search that can be resumed"
    if resumes and options.storage is None and not (folder / JOURNAL_FILE).exists():
        raise ConfigError(
            f"{nothing} ({JOURNAL_FILE} is missing); give its hydra.sweeper.storage, or the folder of one"
        )
    with quiet():
        storage = open_storage(options.database, folder)
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
