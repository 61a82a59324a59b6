"""The combinations of a grid sweep: those of the values that are given, and jobs that are listed one by one."""

from collections.abc import Sequence

from poslab.config import ConfigError


def combined(listed: Sequence[Sequence[str]], grid: Sequence[Sequence[str]]) -> list[list[str]]:
    """Every listed job with every combination of the grid that does not contradict it.

    So a value that is typed for a key that jobs set chooses among them, and one for another key holds for all.

    Args:
        listed: overrides of each job.
        grid: overrides of each combination; where one gives a key twice, the last counts.

    Raises:
        ConfigError: no job goes with any combination; names them.
    """
    found = []
    for job in listed:
        own = dict(map(_split, job))
        for combination in grid:
            given = dict(map(_split, combination))
            if all(own[key] == value for key, value in given.items() if key in own):
                found.append([*job, *(override for override in combination if _split(override)[0] not in own)])
    if not found:
        asked = sorted({override for combination in grid for override in combination})
        jobs = "; ".join(" ".join(job) for job in listed)
        raise ConfigError(f"none of the listed jobs goes with {' '.join(asked)}; they are: {jobs}")
    return found


def _split(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key.lstrip("+"), value
