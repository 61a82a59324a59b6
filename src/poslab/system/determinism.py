"""Deterministic kernels, so that a GPU gives bit-identical numbers, for the time of one job."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Let torch use deterministic kernels only and raise for an operation without one; afterwards restore its settings.

    The Trainer's own setting would stay on for the next job of a sweep.

    Source: https://docs.pytorch.org/docs/stable/notes/randomness.html

    Args:
        wanted: False leaves the settings as they are.
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
    # cuBLAS reads it when CUDA starts; without it the order of a sum varies.
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
