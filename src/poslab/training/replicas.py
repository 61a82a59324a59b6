"""The copies of a bundle: each with a seed, a run folder and loggers of its own."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import lightning
import torch

from poslab.build import build_model
from poslab.config.schema import TrainConfig
from poslab.runs.checkpoint import run_folder_of
from poslab.runs.folder import RunFolder
from poslab.runs.hparams import config_text
from poslab.runs.names import COPIES
from poslab.runs.resume import Start
from poslab.runs.table import MetricsTable
from poslab.runs.tensorboard import RunTensorBoard
from poslab.tasks import Task
from poslab.training.module import log_scalars
from poslab.training.stack import ModelStack, own_random_state


@dataclass(kw_only=True)
class Copy:
    """One copy, as a run of its own would be.

    Attributes:
        job: with this copy's seed.
        overrides: what a run of its own would have been typed with.
        folder, table, board: where its numbers go.
        diverged: what was no finite number any more, and when; None for a copy that is well.
        batches_by_seq_len: batches trained on so far, by the tokens T of their rows.
    """

    job: TrainConfig
    overrides: list[str]
    folder: RunFolder
    table: MetricsTable
    board: RunTensorBoard | None
    diverged: str | None = None
    batches_by_seq_len: Counter[int] = field(default_factory=Counter)

    @property
    def seed(self) -> int:
        return self.job.seed

    @property
    def loggers(self) -> list[MetricsTable | RunTensorBoard]:
        return [self.table] if self.board is None else [self.board, self.table]


class Copies:
    """All copies of a bundle.

    Args:
        copies: in order of their seeds.
        table: of the bundle itself, which holds their means.
    """

    def __init__(self, copies: Sequence[Copy], table: MetricsTable) -> None:
        self._copies = list(copies)
        self.table = table

    def __getitem__(self, index: int) -> Copy:
        return self._copies[index]

    def __iter__(self) -> Iterator[Copy]:
        return iter(self._copies)

    def __len__(self) -> int:
        return len(self._copies)

    def well(self) -> list[int]:
        """The numbers of the copies that have not diverged."""
        return [index for index, copy in enumerate(self._copies) if copy.diverged is None]

    def lost(self) -> list[int]:
        """The numbers of those that have."""
        return [index for index, copy in enumerate(self._copies) if copy.diverged is not None]

    def share_means(self, trainer: lightning.Trainer) -> None:
        """Log the mean of whatever the copies that are well have logged at this step, each name once."""
        known = self.table.rows.get(trainer.global_step, {})
        rows = [self._copies[index].table.rows.get(trainer.global_step, {}) for index in self.well()]
        names = dict.fromkeys(name for row in rows for name in row if name not in known)
        means = {name: fmean(row[name] for row in rows if name in row) for name in names}
        if means:
            log_scalars(trainer, means)


def open_copies(
    job: TrainConfig, folder: RunFolder, start: Start, overrides: Sequence[str], table: MetricsTable
) -> Copies | None:
    """Claim a folder for each copy, or go on in them; None for a run of a single seed.

    Raises:
        ConfigError: a folder cannot be claimed.
    """
    return None if job.seeds == 1 else Copies([*_opened(job, folder, start, overrides)], table)


def _opened(job: TrainConfig, folder: RunFolder, start: Start, overrides: Sequence[str]) -> Iterator[Copy]:
    for seed in range(job.seed, job.seed + job.seeds):
        own_job = replace(job, seed=seed, seeds=1)
        typed = [one for one in overrides if one.lstrip("+").partition("=")[0] not in ("seed", "seeds")]
        typed.append(f"seed={seed}")
        own = RunFolder(folder.path / COPIES / f"seed{seed}")
        if own.taken():
            own.mark_unfinished(own_job, typed, start.seconds / job.seeds)
        else:
            own.claim(own_job, typed)
        table = MetricsTable(own.path)
        board = None
        if job.logger.tensorboard:
            board = RunTensorBoard(own.path, go_on_after=start.step_here)
        if start.checkpoint is not None:
            origin = run_folder_of(start.checkpoint) / COPIES / f"seed{seed}" if start.elsewhere else None
            table.go_on(start.step, origin)
            if board is not None and start.elsewhere:
                board.replay(table.rows)
        elif board is not None:
            board.log_markdown("config", config_text(own_job), 0)
        yield Copy(job=own_job, overrides=typed, folder=own, table=table, board=board)


def build_stack(job: TrainConfig, task: Task) -> ModelStack:
    """The copies' models, each with the parameters that a run of its own would start from.

    Raises:
        ConfigError: sizes that do not fit each other.
        ValueError: the copies differ in more than their parameters.
    """
    models, states = [], []
    with own_random_state():
        for seed in range(job.seed, job.seed + job.seeds):
            torch.manual_seed(seed)
            models.append(build_model(job, task))
            states.append(torch.get_rng_state())
    return ModelStack(models, states)
