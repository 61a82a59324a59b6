"""Runs the jobs of a sweep side by side; `pool` is the same for all, one file for each kind of worker."""

from poslab.devices import visible_devices
from poslab.launchers.cluster import RayPool
from poslab.launchers.local import JoblibPool, is_alive
from poslab.launchers.pool import Call, LostJobError, Pool, failed, launch
from poslab.launchers.queue import SubmititPool
from poslab.threads import available_cores

__all__ = [
    "Call",
    "JoblibPool",
    "LostJobError",
    "Pool",
    "RayPool",
    "SubmititPool",
    "available_cores",
    "failed",
    "is_alive",
    "launch",
    "visible_devices",
]
