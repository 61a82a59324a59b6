"""Which rank of its run this process is, and who started the ranks; read from the environment alone.

A run on several devices is several processes, its ranks. Either rank 0 starts the others (one machine), or all of them
are started from outside, by ``torchrun`` or by SLURM's ``srun`` (any number of machines).
"""

import os
from collections.abc import Mapping

PARENT = "POSLAB_FIRST_RANK"
"""The variable that rank 0 sets for the ranks that it starts: the number of its own process."""
INTERACTIVE = ("bash", "interactive")


def rank(environment: Mapping[str, str] = os.environ) -> int:
    """The number of this process among those of its run; 0 where it is the only one."""
    if _under_srun(environment) and "TORCHELASTIC_RUN_ID" not in environment:
        return int(environment.get("SLURM_PROCID", "0"))
    # RANK first: LOCAL_RANK begins at 0 again on every machine.
    return int(environment.get("RANK") or environment.get("LOCAL_RANK") or "0")


def is_rank_zero() -> bool:
    """Whether this process checks, writes and prints for its run; the only process of a run does."""
    return rank() == 0


def is_second_rank() -> bool:
    """Whether another process of the same run does: not `is_rank_zero`."""
    return not is_rank_zero()


def started_by_first_rank(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether rank 0, which has checked everything, started this process."""
    return PARENT in environment


def starts_other_ranks(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process has to start the other ranks of its run, if there are any: it was started alone."""
    return started_outside(environment) is None and "LOCAL_RANK" not in environment


def started_outside(environment: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """The program that started the ranks and how many they are; None where rank 0 starts the others."""
    if started_by_first_rank(environment):
        return None
    if "TORCHELASTIC_RUN_ID" in environment:
        return "torchrun", int(environment.get("WORLD_SIZE", "1"))
    if _under_srun(environment):
        return "srun", int(environment["SLURM_NTASKS"])
    return None


def _under_srun(environment: Mapping[str, str]) -> bool:
    # As Lightning decides it: a shell that was opened inside an allocation is not one of its tasks.
    return "SLURM_NTASKS" in environment and environment.get("SLURM_JOB_NAME") not in INTERACTIVE
