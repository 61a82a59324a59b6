"""Refuses a job whose number of ranks differs from the number of processes, or whose ranks would not share a folder."""

from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError
from poslab.system.ranks import started_outside

NAMED_BY_TIME = "${poslab_run_name:"


def check_ranks(job: TrainConfig, run_dir: str) -> None:
    """Refuse a job whose number of ranks differs from the processes that run, or whose ranks would not share a folder.

    Args:
        job: the configuration.
        run_dir: ``hydra.run.dir`` as it is written, not resolved.

    Raises:
        ConfigError: names the numbers and what to do.
    """
    devices, nodes = job.trainer.devices, job.trainer.num_nodes
    outside = started_outside()
    if outside is None:
        if nodes > 1:
            raise ConfigError(
                f"trainer.num_nodes={nodes}, but this process was started alone; start one for each device on every "
                "machine by torchrun or srun, see docs/multi_node.md"
            )
        return
    program, processes = outside
    if processes != devices * nodes:
        raise ConfigError(
            f"{program} started {processes} processes, but trainer.devices={devices} on trainer.num_nodes={nodes} are "
            f"{devices * nodes}; "
            + ("start one process" if devices * nodes == 1 else "give the numbers that it has")
            + (", or use trainer=ddp" if job.trainer.strategy == "auto" else "")
        )
    if processes > 1 and NAMED_BY_TIME in run_dir:
        raise ConfigError(
            f"{program} started {processes} processes, and each would make a folder named by its own clock; give all "
            "of them one: hydra.run.dir=outputs/runs/NAME"
        )


def check_alone() -> None:
    """Refuse a sweep that was started in several processes, because each of them would run all of it.

    Raises:
        ConfigError: names how many processes were started.
    """
    outside = started_outside()
    if outside is not None and outside[1] > 1:
        raise ConfigError(
            f"{outside[0]} started {outside[1]} processes, and each would run the whole sweep; start one with -m, and "
            "hydra/launcher=submitit_slurm or another launcher for its jobs"
        )
