"""Bit for bit the same numbers on a GPU too, for as long as one job lasts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Have torch take deterministic kernels only, and raise where there is none; afterwards all is as it was.

    Not by the Trainer's own setting, which the next job of a sweep would find still there.

    Source: https://docs.pytorch.org/docs/stable/notes/randomness.html

    Args:
        wanted: False changes nothing.
    """
    if not wanted:
        yield
        return
    import torch

    cudnn = torch.backends.cudnn
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        cudnn.deterministic,
        cudnn.benchmark,
        os.environ.get(WORKSPACE),
    )
    # cuBLAS reads it when CUDA starts, and sums in an order of its own without it.
    os.environ.setdefault(WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        enabled, warn_only, cudnn.deterministic, cudnn.benchmark, workspace = before
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        if workspace is None:
            del os.environ[WORKSPACE]
