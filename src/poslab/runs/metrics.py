"""Names of the numbers in ``result.json`` that no diagnostic declares; the tests compare them with real runs."""

from collections.abc import Iterable, Mapping

LOGGED = (
    "train/loss",
    "train/loss_mean",
    "train/loss_epoch",
    "train/gradient_norm",
    "learning_rate",
    "val/loss",
    "val/accuracy",
    "val/exact_match",
    "test/loss",
    "test/accuracy",
    "test/exact_match",
)
"""Scalars that every completed run has logged."""
VALIDATED = tuple(name for name in LOGGED if name.startswith("val/"))
"""Those of each validation."""
MONITORED = "val/loss"
"""The number whose lowest value decides which weights are the best."""
SIMILARITY = "neighbour_similarity/offset_1"
"""Stored if training uses two or more rows of a position table, with or without the diagnostic."""
SIMILARITY_ROWS = "neighbour_similarity/rows"
"""Stored beside it: the number of rows that were compared, the first ones of the table."""
COMPLETED_REPLICAS = "copies/completed"
"""Stored by a run of several seeds."""


def parameter_metrics(counts: Mapping[str, int]) -> dict[str, float]:
    """The parameters of each part as ``parameters/<part>``."""
    return {f"parameters/{part}": float(count) for part, count in counts.items()}


def with_start_and_best(logged: Iterable[str]) -> set[str]:
    """Logged names, with ``start/...`` for validation scores and training loss, and ``best/...`` for the former."""
    names = set(logged)
    validation = {name for name in names if name.startswith("val/")}
    started = {f"start/{name}" for name in validation | (names & {"train/loss"})}
    return names | started | {f"best/{name}" for name in validation}
