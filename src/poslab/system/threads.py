"""How many CPU threads a workload deserves."""

import os

MULTIPLICATIONS_PER_THREAD = 2_000_000
"""A matrix product below this many multiplications is over before a second thread has been woken."""


def choose_threads(setting: str, batch_size: int, seq_len: int, d_model: int, processes: int = 1) -> int:
    """Threads for torch: ``setting`` if it is a number, else by the size of the largest matrix product of a step.

    Tiny products on several threads are many times slower than on one, most of all on a busy machine.

    Args:
        setting: ``trainer.threads``.
        batch_size, seq_len, d_model: of one process.
        processes: that share this machine's cores.
    """
    if setting != "auto":
        return int(setting)
    multiplications = batch_size * seq_len * d_model * 3 * d_model
    return max(1, min(allowed_threads() // processes, multiplications // MULTIPLICATIONS_PER_THREAD))


def allowed_threads() -> int:
    """The cores of this process, or fewer where ``OMP_NUM_THREADS`` says so: a sweep's worker is given its share."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return min(available_cores(), int(told)) if told.isdecimal() and int(told) > 0 else available_cores()


def available_cores() -> int:
    """Cores that this process may run on, which in a container is fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
