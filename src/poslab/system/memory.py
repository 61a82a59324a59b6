"""The memory that this process may use, on the machine and on what it computes on."""

import math
import os
from contextlib import suppress
from pathlib import Path

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_bytes() -> float:
    """Bytes of this machine, or of the limit on its container or process; infinite if the system does not say."""
    limits = [math.inf]
    with suppress(AttributeError, OSError, ValueError):
        limits.append(float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    for path in CGROUP_LIMITS:
        # The file does not exist, or says "max".
        with suppress(OSError, ValueError):
            limits.append(float(Path(path).read_text(encoding="ascii")))
    # Windows has no module `resource`.
    with suppress(ImportError):
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        limits.append(math.inf if soft == resource.RLIM_INFINITY else float(soft))
    return min(limits)


def device_memory_bytes(accelerator: str) -> float:
    """Bytes of the device that a job computes on: the GPU if it takes one, else this machine.

    Args:
        accelerator: ``trainer.accelerator``.
    """
    if accelerator == "cpu":
        return memory_bytes()
    import torch

    if not torch.cuda.is_available():
        return memory_bytes()
    return float(torch.cuda.get_device_properties(0).total_memory)
