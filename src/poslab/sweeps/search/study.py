"""The study behind a search: a new one, or the one to go on with, if it is the same search."""

import json
from collections.abc import Sequence
from typing import Any

import optuna
from omegaconf import OmegaConf
from optuna.samplers import RandomSampler
from optuna.study import StudyDirection

from poslab.config.identity import identity
from poslab.errors import ConfigError
from poslab.sweeps.search.options import JOURNAL_FILE, Options, absolute, open_storage, quiet
from poslab.sweeps.search.space import Parameter, check_same_space, stored_form
from poslab.sweeps.sweep import Sweep


def open_study(sweep: Sweep, options: Options, space: Sequence[Parameter], fixed: Sequence[str]) -> optuna.Study:
    """A new study, or the one that an earlier start of this search left.

    Args:
        sweep: in whose folder, and by whose name, it is.
        options: what is searched for, and where it is kept.
        space: what is searched.
        fixed: overrides that all trials have in common.

    Raises:
        ConfigError: there is none to go on with, or it searched for something else.
    """
    folder, name = sweep.folder, sweep.folder.absolute().name
    resumed = sweep.config.sweep.resume is not None
    if resumed and options.storage is None and not (folder / JOURNAL_FILE).exists():
        raise ConfigError(
            f"{folder} holds no search that can go on ({JOURNAL_FILE} is missing); "
            "give its hydra.sweeper.storage, or the folder of one"
        )
    storage = open_storage(absolute(options.storage), folder)
    described = {
        "objectives": [list(goal) for goal in options.goals],
        "space": stored_form(space),
        "settings": fixed_settings(sweep, fixed),
    }
    with quiet():
        if resumed:
            try:
                study = optuna.load_study(study_name=name, storage=storage, sampler=RandomSampler())
            except KeyError as error:
                raise ConfigError(
                    f"{folder} holds no search that can go on (hydra.sweeper.storage has no study '{name}')"
                ) from error
            check_same(study.user_attrs, described, space, sweep)
            return study
        try:
            study = optuna.create_study(
                study_name=name,
                storage=storage,
                directions=[StudyDirection[goal.direction.upper()] for goal in options.goals],
                sampler=RandomSampler(),
            )
        except optuna.exceptions.DuplicatedStudyError as error:
            raise ConfigError(
                f"hydra.sweeper.storage={options.storage} holds a study '{name}' already; "
                f"go on with it by sweep.resume={folder}, or choose another hydra.sweep.dir"
            ) from error
    for key, value in described.items():
        study.set_user_attr(key, value)
    return study


def fixed_settings(sweep: Sweep, fixed: Sequence[str]) -> dict[str, Any]:
    """What all trials have in common, as far as it decides results."""
    composed = sweep.loader.load_sweep_config(sweep.config, list(fixed))
    container = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(container, dict)
    settings = identity({str(key): value for key, value in container.items()})
    # As JSON gives them back.
    return dict(json.loads(json.dumps(settings)))


def check_same(before: dict[str, Any], now: dict[str, Any], space: Sequence[Parameter], sweep: Sweep) -> None:
    """Refuse to go on with another search.

    Raises:
        ConfigError: names what differs, before and now.
    """
    folder = sweep.folder
    if "settings" not in before:
        raise ConfigError(f"{folder} was stopped before its first trial; start a new search")
    if before["objectives"] != now["objectives"]:
        then, here = (", ".join(" ".join(goal) for goal in said["objectives"]) for said in (before, now))
        raise ConfigError(f"{folder} searches for {then} and cannot go on for {here}; start a new search")
    check_same_space(before["space"], space)
    old, new = before["settings"], now["settings"]
    changes = [
        f"{key} was {old.get(key, 'not set')} and is {new.get(key, 'not set')}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    if changes:
        raise ConfigError(
            f"{folder} cannot go on with other settings: {'; '.join(changes)}; give the old ones, or start anew"
        )
