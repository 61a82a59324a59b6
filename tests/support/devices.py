"""Machines that tests pretend to have."""

import pytest


def no_device(patch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU."""
    import torch

    patch.setattr(torch.cuda, "is_available", lambda: False)
    patch.setattr(torch.accelerator, "is_available", lambda: False)
