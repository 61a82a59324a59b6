"""Compare levels at their own best value of a tuning axis, such as the learning rate."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from poslab.comparison.axes import Value, order
from poslab.comparison.collect import Job
from poslab.comparison.levels import Cell, Grid, Seed, grid, seed_of
from poslab.comparison.outcomes import AREA, learned

Chosen = dict[Cell, tuple[tuple[Value | None, ...], ...]]
"""By matched setting, the values of the tuning axes that were chosen, each once."""


def tuned(jobs: Sequence[Job], others: Sequence[str], tune: Sequence[str]) -> tuple[Grid, Chosen]:
    """The jobs of one level at the best values of its tuning axes.

    The best values are chosen on one half of the seeds and judged on the other, both ways: the seeds that chose a value
    would flatter it. With one seed there is no other half, and no job.

    Args:
        jobs: of one level.
        others: the axes whose values are matched.
        tune: the tuning axes.

    Returns:
        the jobs, by matched setting and seed, and what was chosen.
    """
    seeds = sorted({seed_of(job) for job in jobs}, key=order)
    half = {seed: at % 2 for at, seed in enumerate(seeds)}
    by_values: dict[tuple[Value | None, ...], list[Job]] = {}
    for job in jobs:
        by_values.setdefault(tuple(job.settings.get(each) for each in tune), []).append(job)
    by_cell: dict[Cell, dict[tuple[Value | None, ...], Mapping[Seed, Job]]] = {}
    for values, same in by_values.items():
        for cell, row in grid(same, others).items():
            by_cell.setdefault(cell, {})[values] = row
    found: dict[Cell, dict[Seed, Job]] = {}
    chosen: Chosen = {}
    for cell, rows in by_cell.items():
        best = []
        for judged in (0, 1):
            merits = {
                values: merit([job for seed, job in row.items() if half[seed] != judged])
                for values, row in rows.items()
                if any(half[seed] != judged for seed in row)
            }
            if not merits:
                continue
            values = min(merits, key=lambda values: (merits[values], [order(value) for value in values]))
            best.append(values)
            for seed, job in rows[values].items():
                if half[seed] == judged:
                    found.setdefault(cell, {})[seed] = job
        chosen[cell] = tuple(dict.fromkeys(best))
    return found, chosen


def merit(jobs: Sequence[Job]) -> tuple[float, float]:
    """A sort key, smallest for the best jobs: the share that learned, then the area under the loss curve."""
    known = [found for job in jobs if (found := learned(job)) is not None]
    areas = [value for job in jobs if job.completed and (value := AREA.value(job)) is not None]
    return -fmean(known) if known else 0.0, fmean(areas) if areas else math.inf
