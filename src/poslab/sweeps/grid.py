"""The combinations of a grid and the folder names of its jobs."""

import re
import shlex
from collections.abc import Sequence

from poslab.config.overrides import key_of
from poslab.errors import ConfigError

LONGEST_LABEL = 60


def with_jobs(grid: Sequence[Sequence[str]], jobs: Sequence[str]) -> list[list[str]]:
    """Combine each entry of a grid with each listed job; without listed jobs, return the grid.

    Where an entry and a job set the same key, they are combined only if the values agree.

    Args:
        grid: overrides of each entry.
        jobs: overrides that belong together, separated by spaces and quoted as in a shell.

    Raises:
        ConfigError: no combination is left, or a job cannot be read.
    """
    if not jobs:
        return [list(overrides) for overrides in grid]
    listed = [_listed_job(job) for job in jobs]
    combined = [
        [*overrides, *(override for key, override in job.items() if key not in typed)]
        for overrides, typed in ((overrides, _by_key(overrides)) for overrides in grid)
        for job in listed
        if all(typed.get(key, override) == override for key, override in job.items())
    ]
    if not combined:
        wanted = " ".join(override for key, override in _by_key(grid[0]).items() if any(key in job for job in listed))
        raise ConfigError(f"none of the jobs in hydra.sweeper.jobs has {wanted}; there are: {'; '.join(jobs)}")
    return combined


def _listed_job(job: str) -> dict[str, str]:
    """The overrides of one listed job by their key.

    Raises:
        ConfigError: the text holds something else than overrides; names it.
    """
    try:
        words = shlex.split(str(job))
    except ValueError as error:
        raise ConfigError(f"hydra.sweeper.jobs: {job} cannot be read ({error})") from error
    if not words or not all("=" in word.lstrip("~") or word.startswith("~") for word in words):
        raise ConfigError(
            f"hydra.sweeper.jobs: '{job}' is not a job; write its settings with spaces between, pos=rope seed=1"
        )
    return _by_key(words)


def _by_key(overrides: Sequence[str]) -> dict[str, str]:
    return {key_of(override): override for override in overrides}


def varying_keys(grid: Sequence[Sequence[str]]) -> set[str]:
    """The keys that have several values in the grid, or that only some entries set."""
    values: dict[str, list[str]] = {}
    for overrides in grid:
        for override in overrides:
            key, _, value = override.partition("=")
            values.setdefault(key, []).append(value)
    return {key for key, found in values.items() if len(set(found)) > 1 or len(found) < len(grid)}


def job_label(overrides: Sequence[str], varying: set[str]) -> str:
    """The varying settings of a job in portable characters, ``learned-d_model32-n_heads4-seed1``."""
    parts = []
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if override.partition("=")[0] in varying:
            if re.fullmatch(r"-?\d+\.\d{6,}(e-?\d+)?", value):
                # Drawn by a search; the key behind the label tells it from similar values.
                value = f"{float(value):.4g}"
            # The choice of a group explains itself; a number or a truth value needs its key.
            plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value) and value.lower() not in ("true", "false", "null")
            parts.append(value if plain else f"{key.split('.')[-1]}{value}")
    label = re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(parts)).strip("._-")
    return label[:LONGEST_LABEL].rstrip("._-") or "job"
