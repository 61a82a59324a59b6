"""Runs the jobs of a sweep side by side; `pool` is the same for all, one file for each kind of worker."""

from poslab.errors import LostJobError
from poslab.launchers.local import JoblibPool, is_alive
from poslab.launchers.pool import Call, Pool, failed, launch
from poslab.launchers.ray import RayPool
from poslab.launchers.submitit import SubmititPool
from poslab.system.devices import visible_devices
from poslab.system.threads import available_cores

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
