"""Workers on a Ray cluster."""

import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn

from poslab.errors import ConfigError
from poslab.launchers.pool import GRACE_SECONDS, Call, Pool, first_sentence, load
from poslab.system.devices import VISIBLE
from poslab.system.threads import available_cores


def call_on_ray(call: Call, hide_devices: bool) -> JobReturn:
    """Run a job in a worker of Ray; hide all GPUs from a job that asked for none."""
    if hide_devices:
        os.environ[VISIBLE] = ""
    return call()


class RayPool(Pool[Any]):
    """A Ray cluster, which queues the jobs itself and restarts those of a dead node on another."""

    capacity = math.inf

    def __init__(self, init: dict[str, Any], remote: dict[str, Any]) -> None:
        self.init = {name: value for name, value in init.items() if value is not None}
        if "address" in self.init and "RAY_AUTH_MODE" not in os.environ and (Path.home() / ".ray/auth_token").exists():
            # A cluster on this machine asks for this token, any other ignores it. Ray reads the mode when imported.
            os.environ["RAY_AUTH_MODE"] = "token"
        self.ray = load("ray", "hydra/launcher=ray", "ray")
        self.remote = {name: value for name, value in remote.items() if value is not None}
        if "address" in self.init:
            # Now, so that a missing cluster is found before the sweep makes a folder.
            self.connect()

    def connect(self) -> None:
        """Start a cluster on this machine, or join the one of ``ray.init.address``.

        Raises:
            ConfigError: there is no cluster at that address.
        """
        if self.ray.is_initialized():
            return
        # Ray would repeat on the console what its processes log; jobs have log files.
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if "address" not in self.init:
            # The smallest store is enough, because results are in files.
            options |= {"address": "local", "num_cpus": available_cores(), "include_dashboard": False}
            options |= {"object_store_memory": 80 * 2**20}
        try:
            self.ray.init(**options | self.init)
        except (ConnectionError, ValueError) as error:
            raise ConfigError(
                f"hydra.launcher.ray.init.address={self.init.get('address')}: {first_sentence(error)}"
            ) from error

    @property
    def workers(self) -> str:
        n_jobs, n_nodes = self.places()
        return f"{n_jobs} on {n_nodes} node{'s' if n_nodes > 1 else ''}"

    def places(self) -> tuple[int, int]:
        """How many jobs fit on the cluster at once, and the number of its nodes.

        Raises:
            ConfigError: no job fits, so Ray would wait forever.
        """
        self.connect()
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        needs = {"CPU": self.remote.get("num_cpus", 1), "GPU": self.remote.get("num_gpus", 0)}
        n_jobs = sum(
            min((int(node.get(kind, 0) / amount) for kind, amount in needs.items() if amount), default=1)
            for node in nodes
        )
        if n_jobs == 0:
            raise ConfigError(
                f"no node of the cluster has what a job asks for: hydra.launcher.ray.remote.num_cpus={needs['CPU']}, "
                f"num_gpus={needs['GPU']}"
            )
        return n_jobs, len(nodes)

    def check_devices(self, accelerator: str, devices: int) -> None:
        if accelerator == "gpu" and not self.remote.get("num_gpus"):
            raise ConfigError(
                "trainer.accelerator=gpu, but hydra.launcher.ray.remote.num_gpus=0 gives the job none; set it to 1, or "
                "to a part of one for jobs that share"
            )

    def prepare(self, n_jobs: int, folder: Path) -> None:
        self.places()

    def start(self, calls: Sequence[Call]) -> list[Any]:
        task = self.ray.remote(**self.remote)(call_on_ray)
        return [task.remote(call, not self.remote.get("num_gpus")) for call in calls]

    def ended(self, handles: Sequence[Any]) -> list[Any]:
        return self.ray.wait(list(handles), num_returns=1, timeout=1)[0]

    def result(self, handle: Any) -> JobReturn:
        return self.ray.get(handle)

    def stop(self, handles: Sequence[Any]) -> None:
        try:
            for handle in handles:
                self.ray.cancel(handle)
            if handles:
                self.ray.wait(list(handles), num_returns=len(handles), timeout=GRACE_SECONDS)
        finally:
            self.ray.shutdown()
