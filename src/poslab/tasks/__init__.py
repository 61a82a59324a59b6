"""Tasks: one file each, all behind the interface in `base`. NumPy only, so a task can be checked before torch loads."""

from poslab.tasks.base import Batch, Task

__all__ = ["Batch", "Task"]
