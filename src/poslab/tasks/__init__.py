"""Tasks, one file each; all implement the interface in `base`.

They need NumPy only, so that the command line can check a task without importing torch.
"""

from poslab.tasks.base import Batch, Task

__all__ = ["Batch", "Task"]
