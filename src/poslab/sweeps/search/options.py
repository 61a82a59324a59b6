"""What a person can set under ``hydra.sweeper``, checked."""

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
        n_trials: of the whole search, those of its earlier starts and those that fail included.
        n_jobs: trials that are asked for together and given to the launcher as one batch.
        objectives: one, or several whose best compromises are looked for.
        sampler: ``tpe``, ``random`` or ``grid``.
        sampler_options: arguments of Optuna's class for it, or None.
        pruner: ``none``, ``median`` or ``halving``; ends hopeless trials early, by their validation loss.
        pruner_options: arguments of Optuna's class for it, or None.
        seed: of the sampler; the same search with ``n_jobs=1`` has the same trials.
        storage: a database, ``sqlite:///FILE``; None is a journal in the sweep's folder.

    Raises:
        ConfigError: a value that is none of those.
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
        for name in ("n_trials", "n_jobs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"hydra.sweeper.{name}={getattr(self, name)} must be at least 1")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"hydra.sweeper.seed={self.seed} must be in [0, 2^32)")
        for name in ("sampler_options", "pruner_options"):
            if not isinstance(getattr(self, name), (dict, type(None))):
                raise ConfigError(f"hydra.sweeper.{name}={getattr(self, name)} must be names and values: {{name:1}}")
        one_of("sampler", self.sampler, SAMPLERS)
        one_of("pruner", self.pruner, PRUNERS)
        self.goals = [Objective(given["metric"], given["direction"]) for given in self.objectives]
        if not self.goals:
            raise ConfigError("hydra.sweeper.objectives is empty; give {metric:NAME,direction:minimize|maximize}")
        for goal in self.goals:
            one_of(f"objectives: the direction of {goal.metric}", goal.direction, DIRECTIONS)
        if len({goal.metric for goal in self.goals}) < len(self.goals):
            raise ConfigError("hydra.sweeper.objectives names a metric twice")
        if len(self.goals) > 1 and self.pruner != "none":
            raise ConfigError(
                f"hydra.sweeper.pruner={self.pruner} with {len(self.goals)} objectives: a trial that is bad in one may "
                "be good in another; use pruner=none, or one objective"
            )
        # Now, and not after the first trial.
        build_pruner(self.pruner, self.pruner_options)
        if self.sampler != "grid":
            build_sampler(self, [], 0)
        elif self.sampler_options:
            raise ConfigError("hydra.sweeper.sampler=grid has no sampler_options")


def one_of(name: str, value: str, choices: Sequence[str] | Mapping[str, Any]) -> None:
    if value not in choices:
        raise ConfigError(f"hydra.sweeper.{name}={value} is unknown; choose one of {', '.join(choices)}")


@contextmanager
def quiet() -> Iterator[None]:
    """Without Optuna's remarks on what it calls experimental; errors pass."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def build_sampler(options: Options, space: Sequence[Parameter], number: int) -> BaseSampler:
    """The sampler for one trial.

    A new one each time, seeded by the trial's number: a search that goes on in another process draws what it would have
    drawn in the first, and never the same again.

    Args:
        options: which one.
        space: what is searched.
        number: of the trial.

    Raises:
        ConfigError: options that the sampler does not have, or a space that is no grid.
    """
    if options.sampler == "grid":
        # Its seed orders the grid: one order for the whole search.
        return GridSampler({parameter.key: parameter.every_value() for parameter in space}, seed=options.seed)
    seed = int(np.random.SeedSequence([options.seed, number]).generate_state(1)[0])
    with quiet():
        try:
            given = options.sampler_options or {}
            if options.sampler == "random":
                return RandomSampler(seed=seed, **given)
            # So that the trials of one batch are not all the same.
            return TPESampler(seed=seed, **{"constant_liar": options.n_jobs > 1, **given})
        except (TypeError, ValueError) as error:
            raise ConfigError(f"hydra.sweeper.sampler_options: {' '.join(str(error).split())}") from error


def build_pruner(name: str, options: Mapping[str, Any] | None) -> BasePruner:
    """A pruner by its short name.

    Raises:
        ConfigError: options that it does not have.
    """
    try:
        return PRUNERS[name](**(options or {}))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"hydra.sweeper.pruner_options: {' '.join(str(error).split())}") from error


def absolute(storage: str | None) -> str | None:
    """The storage by a name that means the same from any working folder.

    Raises:
        ConfigError: no storage that outlives the process.
    """
    if storage is None:
        return None
    kind, _, rest = storage.partition("://")
    if not rest.strip("/") or (kind.startswith("sqlite") and not rest.startswith("/")):
        raise ConfigError(
            f"hydra.sweeper.storage={storage} is no database; use sqlite:///FILE, or null for a journal in the folder"
        )
    if kind.startswith("sqlite"):
        return f"{kind}:///{Path(rest[1:]).absolute()}"
    return storage


def open_storage(storage: str | None, folder: Path) -> BaseStorage:
    """Where the trials are kept; safe for several processes on one machine.

    Args:
        storage: an `absolute` name, or None.
        folder: of the sweep.

    Raises:
        ConfigError: it cannot be opened.
    """
    with quiet():
        if storage is None:
            path = str(folder / JOURNAL_FILE)
            # The other kind of lock needs symbolic links, which Windows gives to administrators only.
            lock = JournalFileOpenLock(path) if os.name == "nt" else JournalFileSymlinkLock(path)
            return JournalStorage(JournalFileBackend(path, lock))
        # The schema's migrations are of no interest to anybody here.
        logging.getLogger("alembic").setLevel(logging.WARNING)
        # Jobs that end together write together: let them wait for each other. Without a pool each connection is closed
        # after its use; those of a pool stay open until Python frees the storage.
        sqlite = {"connect_args": {"timeout": 60}, "poolclass": NullPool}
        try:
            return RDBStorage(storage, engine_kwargs=sqlite if storage.startswith("sqlite") else None)
        except Exception as error:
            # SQLAlchemy's own message goes on with a link and the statement.
            reason = str(error).strip().partition("\n")[0]
            raise ConfigError(f"hydra.sweeper.storage={storage} cannot be opened: {reason}") from error
