"""Runs the jobs of a sweep side by side: `pool` is common to all workers, and each kind of worker has a file."""

from poslab.launchers.local import JoblibPool
from poslab.launchers.pool import Call, Pool, launch
from poslab.launchers.ray import RayPool
from poslab.launchers.submitit import SubmititPool

__all__ = ["Call", "JoblibPool", "Pool", "RayPool", "SubmititPool", "launch"]
