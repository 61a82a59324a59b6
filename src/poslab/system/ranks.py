"""Which of a run's processes this is, and who started them; read from the environment, so that it costs nothing.

A run on several devices is several processes, its ranks. Either the first one starts the others (one machine), or all
are started from outside, by ``torchrun`` or by SLURM's ``srun`` (any number of machines).
"""

import os
from collections.abc import Mapping

PARENT = "POSLAB_FIRST_RANK"
"""Set for a rank that another one started: the process of that one."""
INTERACTIVE = ("bash", "interactive")


def rank(environment: Mapping[str, str] = os.environ) -> int:
    """The number of this process among those of its run; 0 for the first or only one."""
    if _under_srun(environment) and "TORCHELASTIC_RUN_ID" not in environment:
        return int(environment.get("SLURM_PROCID", "0"))
    # On a second machine LOCAL_RANK begins at 0 again.
    return int(environment.get("RANK") or environment.get("LOCAL_RANK") or "0")


def is_second_rank() -> bool:
    """Whether another process of the same run checks, writes and speaks for this one."""
    return rank() > 0


def started_by_first_rank(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the first rank, which has checked everything, started this process."""
    return PARENT in environment


def started_outside(environment: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """The program that started the ranks and how many they are; None where the first one starts the others."""
    if started_by_first_rank(environment):
        return None
    if "TORCHELASTIC_RUN_ID" in environment:
        return "torchrun", int(environment.get("WORLD_SIZE", "1"))
    if _under_srun(environment):
        return "srun", int(environment["SLURM_NTASKS"])
    return None


def _under_srun(environment: Mapping[str, str]) -> bool:
    # As Lightning decides it: a shell inside an allocation is no task of it.
    return "SLURM_NTASKS" in environment and environment.get("SLURM_JOB_NAME") not in INTERACTIVE
