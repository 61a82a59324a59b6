"""Chooses the number of CPU threads for a workload."""

import os

MULTIPLICATIONS_PER_THREAD = 2_000_000
"""A smaller matrix product ends before a second thread has started to help."""


def choose_threads(setting: str, batch_size: int, seq_len: int, d_model: int, processes: int = 1) -> int:
    """The number of threads for torch: ``setting`` if it is a number, else by the largest matrix product of a step.

    Small products are many times slower on several threads than on one, above all on a busy machine.

    Args:
        setting: ``trainer.threads``.
        batch_size, seq_len, d_model: of one process.
        processes: how many share this machine's cores.
    """
    if setting != "auto":
        return int(setting)
    multiplications = batch_size * seq_len * d_model * 3 * d_model
    return max(1, min(allowed_threads() // processes, multiplications // MULTIPLICATIONS_PER_THREAD))


def allowed_threads() -> int:
    """The cores of this process, at most ``OMP_NUM_THREADS``: a sweep gives each of its workers a share by it."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(available_cores(), int(limit)) if limit.isdecimal() and int(limit) > 0 else available_cores()


def available_cores() -> int:
    """The cores that this process may run on; in a container fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
