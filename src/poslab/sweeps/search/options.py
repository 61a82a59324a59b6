"""The options of a search, ``hydra.sweeper``, and the Optuna objects that they describe."""

import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, GridSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalFileSymlinkLock
from sqlalchemy.pool import NullPool

from poslab.config.rules import at_least, one_of
from poslab.errors import ConfigError
from poslab.sweeps.search.objectives import Objective
from poslab.sweeps.search.space import Parameter

JOURNAL_FILE = "study.journal"
SAMPLERS = ("tpe", "random", "grid")
PRUNERS: dict[str, type[BasePruner]] = {
    "none": NopPruner,
    "median": MedianPruner,
    "halving": SuccessiveHalvingPruner,
}
DIRECTIONS = ("minimize", "maximize")


@dataclass(kw_only=True)
class Options:
    """``hydra.sweeper``.

    Attributes:
        n_trials: of the whole search, with those of its earlier starts and those that fail.
        n_jobs: trials that are drawn together and given to the launcher as one batch.
        objectives: one, or several of which the best compromises are searched.
        sampler: ``tpe``, ``random`` or ``grid``.
        sampler_options: arguments of Optuna's class for it, or None.
        pruner: ``none``, ``median`` or ``halving``; ends hopeless trials early, by their validation loss.
        pruner_options: arguments of Optuna's class for it, or None.
        seed: of the sampler; with ``n_jobs=1`` the same search has the same trials.
        storage: a database, ``sqlite:///FILE``; None: a journal in the sweep's folder.
        database: the same with an absolute path, which holds in any working directory.

    Raises:
        ConfigError: an unknown or impossible value.
    """

    n_trials: int
    n_jobs: int
    objectives: Sequence[Mapping[str, str]]
    sampler: str
    sampler_options: dict[str, Any] | None
    pruner: str
    pruner_options: dict[str, Any] | None
    seed: int
    storage: str | None

    def __post_init__(self) -> None:
        at_least(1, self, "hydra.sweeper.", "n_trials", "n_jobs")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"hydra.sweeper.seed={self.seed} must be in [0, 2^32)")
        for name in ("sampler_options", "pruner_options"):
            if not isinstance(getattr(self, name), (dict, type(None))):
                raise ConfigError(f"hydra.sweeper.{name}={getattr(self, name)} must be names and values: {{name:1}}")
        one_of("hydra.sweeper.sampler", self.sampler, SAMPLERS)
        one_of("hydra.sweeper.pruner", self.pruner, PRUNERS)
        self.goals = [Objective(given["metric"], given["direction"]) for given in self.objectives]
        if not self.goals:
            raise ConfigError("hydra.sweeper.objectives is empty; give {metric:NAME,direction:minimize|maximize}")
        for goal in self.goals:
            one_of(f"hydra.sweeper.objectives: the direction of {goal.metric}", goal.direction, DIRECTIONS)
        if len({goal.metric for goal in self.goals}) < len(self.goals):
            raise ConfigError("hydra.sweeper.objectives names a metric twice")
        if len(self.goals) > 1 and self.pruner != "none":
            raise ConfigError(
                f"hydra.sweeper.pruner={self.pruner} with {len(self.goals)} objectives: a trial that is bad in one may "
                "be good in another; use pruner=none, or one objective"
            )
        self.database = absolute(self.storage)
        # Wrong options are refused here and not after the first trial.
        build_pruner(self.pruner, self.pruner_options)
        if self.sampler != "grid":
            build_sampler(self, [], 0)
        elif self.sampler_options:
            raise ConfigError("hydra.sweeper.sampler=grid has no sampler_options")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Optuna's messages and its warnings of experimental features."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def build_sampler(options: Options, space: Sequence[Parameter], number: int) -> BaseSampler:
    """The sampler for one trial, seeded by the trial's number.

    So a search that resumes in another process draws the trials that the first process would have drawn.

    Args:
        options: which one.
        space: what is searched.
        number: of the trial.

    Raises:
        ConfigError: options that the sampler does not have, or a space with too many values for a grid.
    """
    if options.sampler == "grid":
        # Its seed orders the grid, so it is the same for all trials.
        return GridSampler({parameter.key: parameter.every_value() for parameter in space}, seed=options.seed)
    seed = int(np.random.SeedSequence([options.seed, number]).generate_state(1)[0])
    with quiet():
        try:
            given = options.sampler_options or {}
            if options.sampler == "random":
                return RandomSampler(seed=seed, **given)
            # Without this option the trials of one batch would be alike.
            return TPESampler(seed=seed, **{"constant_liar": options.n_jobs > 1, **given})
        except (TypeError, ValueError) as error:
            raise ConfigError(f"hydra.sweeper.sampler_options: {error}") from error


def build_pruner(name: str, options: Mapping[str, Any] | None) -> BasePruner:
    """A pruner by its short name.

    Raises:
        ConfigError: options that it does not have.
    """
    try:
        return PRUNERS[name](**(options or {}))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"hydra.sweeper.pruner_options: {error}") from error


def absolute(storage: str | None) -> str | None:
    """The storage's name with an absolute path, which holds in any working directory.

    Raises:
        ConfigError: the name is not that of a database, or of one in memory.
    """
    if storage is None:
        return None
    kind, _, rest = storage.partition("://")
    if not rest.strip("/") or (kind.startswith("sqlite") and not rest.startswith("/")):
        raise ConfigError(
            f"hydra.sweeper.storage={storage} is not a database; use sqlite:///FILE, or null for a journal in the "
            "sweep's folder"
        )
    if kind.startswith("sqlite"):
        return f"{kind}:///{Path(rest[1:]).absolute()}"
    return storage


def open_storage(storage: str | None, folder: Path) -> BaseStorage:
    """Open the storage of the trials, which several processes of one machine may share.

    Args:
        storage: an `absolute` name, or None for a journal.
        folder: of the sweep.

    Raises:
        ConfigError: it cannot be opened.
    """
    with quiet():
        if storage is None:
            path = str(folder / JOURNAL_FILE)
            # The other lock needs symbolic links, which only administrators may make on Windows.
            lock = JournalFileOpenLock(path) if os.name == "nt" else JournalFileSymlinkLock(path)
            return JournalStorage(JournalFileBackend(path, lock))
        # Hide the messages of the schema's migrations.
        logging.getLogger("alembic").setLevel(logging.WARNING)
        # Jobs that end at the same time wait for each other to write. A connection without a pool closes after its use;
        # those of a pool stay open until Python frees the storage.
        sqlite = {"connect_args": {"timeout": 60}, "poolclass": NullPool}
        try:
            return RDBStorage(storage, engine_kwargs=sqlite if storage.startswith("sqlite") else None)
        except Exception as error:
            # The other lines of SQLAlchemy's message are a link and the statement.
            reason = str(error).strip().partition("\n")[0]
            raise ConfigError(f"hydra.sweeper.storage={storage} cannot be opened: {reason}") from error
