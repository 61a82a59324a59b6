"""Levels of an axis, and pairs of jobs that differ in nothing else."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from poslab.comparison.axes import SEED, Value, level_name, order, show
from poslab.comparison.collect import Job

Cell = tuple[Value | None, ...]
Seed = Value | None
Grid = Mapping[Cell, Mapping[Seed, Job]]
"""The jobs of one level by the values of the other axes, and by seed."""


class Level(NamedTuple):
    """One level of an axis.

    Attributes:
        value: of the axis.
        options: options that other values of the axis do not have, or have with other values, by name. ``pos=learned``
            with two values of ``pos.init_std`` is two levels, because ``pos=sinusoidal`` has no such option: an average
            over both would say nothing about either.
    """

    value: Value
    options: tuple[tuple[str, Value], ...] = ()

    @property
    def order(self) -> list[tuple[int, float, str]]:
        """A sort key."""
        return [order(self.value), *(order(value) for _, value in self.options)]

    def name(self, axis: str, names: Mapping[str, str]) -> str:
        """As text: ``sinusoidal``, ``n_heads 8``, ``learned (init_std 5)``."""
        options = ", ".join(f"{names.get(key, key)} {show(value)}" for key, value in self.options)
        return level_name(axis, self.value, names) + (f" ({options})" if options else "")

    def stored(self, axis: str) -> str:
        """As in ``comparison.json``: ``pos=learned pos.init_std=5``."""
        return " ".join(f"{key}={show(value)}" for key, value in ((axis, self.value), *self.options))


def own_options(axis: str, axes: Sequence[str], jobs: Sequence[Job]) -> list[str]:
    """The options of an axis's values that belong to its levels, because not every value has the same of them.

    Args:
        axis: such as ``pos``.
        axes: every axis of the comparison.
        jobs: the jobs that are compared.
    """
    found = []
    for option in axes:
        if not option.startswith(f"{axis}."):
            continue
        by_value: dict[Value, set[Value | None]] = {}
        for job in jobs:
            if axis in job.settings:
                by_value.setdefault(job.settings[axis], set()).add(job.settings.get(option))
        # `pos.base` is one number in rope and another in sinusoidal; `model.d_model` means the same in every model.
        different = axis == "pos" and len({frozenset(values) for values in by_value.values()}) > 1
        if different or any(None in values for values in by_value.values()):
            found.append(option)
    return found


def level_of(job: Job, axis: str, options: Sequence[str]) -> Level | None:
    """The level of a job; None if it does not have the axis."""
    if axis not in job.settings:
        return None
    return Level(job.settings[axis], tuple((key, job.settings[key]) for key in options if key in job.settings))


def seed_of(job: Job) -> Seed:
    """The seed that a job was set to, or the one that its result names."""
    return job.settings.get(SEED, job.seed)


def grid(jobs: Sequence[Job], others: Sequence[str]) -> Grid:
    """Jobs of one level by the values of the other axes and by seed."""
    found: dict[Cell, dict[Seed, Job]] = {}
    for job in jobs:
        cell = tuple(job.settings.get(other) for other in others)
        found.setdefault(cell, {})[seed_of(job)] = job
    return found


def cell_name(cell: Cell, others: Sequence[str], names: Mapping[str, str]) -> str:
    """A matched setting as text: ``d_model 32, n_heads 4``."""
    words = [level_name(axis, value, names) for axis, value in zip(others, cell, strict=True) if value is not None]
    return ", ".join(words) or "all jobs"


def complete_block(pairs: set[tuple[Cell, Seed]]) -> tuple[list[Cell], list[Seed]]:
    """Select cells (settings) and seeds such that a pair of jobs exists for every selected cell and seed.

    As long as pairs are missing, the cell or the seed with the smallest share of existing pairs is dropped.
    """
    pairs = set(pairs)
    while True:
        cells = sorted({cell for cell, _ in pairs}, key=lambda cell: [order(value) for value in cell])
        seeds = sorted({seed for _, seed in pairs}, key=order)
        if len(pairs) == len(cells) * len(seeds):
            return cells, seeds
        of_cell = {cell: sum((cell, seed) in pairs for seed in seeds) / len(seeds) for cell in cells}
        of_seed = {seed: sum((cell, seed) in pairs for cell in cells) / len(cells) for seed in seeds}
        worst_cell, worst_seed = min(cells, key=of_cell.__getitem__), min(seeds, key=of_seed.__getitem__)
        # If equal, drop the cell: the number of seeds is the sample size of the test.
        drop_cell = of_cell[worst_cell] <= of_seed[worst_seed]
        pairs = {(cell, seed) for cell, seed in pairs if (cell != worst_cell if drop_cell else seed != worst_seed)}
