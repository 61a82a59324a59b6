"""The replicas of a run: each with a seed, a run folder and loggers of its own."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from poslab.runs.files import RunFiles


@dataclass(kw_only=True)
class Replica(RunFiles):
    """One model of a run and its files.

    Attributes:
        diverged: which loss was NaN or infinite, and when; None for a replica that has not diverged.
        stopped: the step at which ``trainer.stop_when`` stopped it; None for one that it has not stopped.
        frozen: it was stopped at a step before the present one.
        batches_by_seq_len: batches trained on so far, by the tokens T of their rows.
        start: how large its vectors were before training, see `poslab.model.start.start_scales`.
    """

    diverged: str | None = None
    stopped: int | None = None
    frozen: bool = False
    batches_by_seq_len: Counter[int] = field(default_factory=Counter)
    start: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        return self.job.seed

    @property
    def active(self) -> bool:
        """Whether the present step is one of its own; that at which it was stopped is."""
        return self.diverged is None and not self.frozen


class Replicas:
    """All N >= 1 replicas of a run.

    Args:
        replicas: in order of their seeds.
        means: the run's own files, which hold the means over the active replicas; with N = 1 those of the replica.
    """

    def __init__(self, replicas: Sequence[Replica], means: RunFiles) -> None:
        self._replicas = list(replicas)
        self.means = means

    def __getitem__(self, index: int) -> Replica:
        return self._replicas[index]

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas)

    def __len__(self) -> int:
        return len(self._replicas)

    def active(self) -> list[int]:
        """The indices of the replicas that have not diverged and were not stopped before the present step."""
        return [index for index, replica in enumerate(self._replicas) if replica.active]

    def inactive(self) -> list[int]:
        """The indices of the others."""
        return [index for index, replica in enumerate(self._replicas) if not replica.active]

    def diverged(self) -> list[int]:
        """The indices of those that have diverged."""
        return [index for index, replica in enumerate(self._replicas) if replica.diverged is not None]

    def go_on(self) -> bool:
        """Whether a replica is left to train."""
        return any(replica.active and replica.stopped is None for replica in self._replicas)

    def freeze_stopped(self, step: int) -> None:
        """Freeze the replicas that were stopped before a step."""
        for replica in self._replicas:
            replica.frozen = replica.stopped is not None and replica.stopped < step

    def all_files(self) -> list[RunFiles]:
        """The files of every replica and those of the run, each once."""
        return [*self._replicas, *(() if self.means in self._replicas else (self.means,))]

    def count_batch(self, seq_lens: Sequence[int]) -> None:
        """Count one batch of each active replica by the tokens of its rows."""
        for index in self.active():
            self._replicas[index].batches_by_seq_len[seq_lens[index]] += 1

    def log(self, values: Mapping[str, Sequence[float]], step: int) -> None:
        """Log one value of each active replica under each name, and the means."""
        for index in self.active():
            self._replicas[index].log({name: column[index] for name, column in values.items()}, step)
        self.log_means(step)

    def log_means(self, step: int) -> None:
        """Log the mean of each number that the active replicas have logged at this step and the run has not.

        A replica that was stopped before counts with its last value.
        """
        known = self.means.table.rows.get(step, {})
        rows = [self._replicas[index].table.rows.get(step, {}) for index in self.active()]
        names = dict.fromkeys(name for row in rows for name in row if name not in known)
        rows += [replica.table.last() for replica in self._replicas if replica.frozen and replica.diverged is None]
        means = {name: fmean(row[name] for row in rows if name in row) for name in names}
        if means:
            self.means.log(means, step)
