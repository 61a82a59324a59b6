"""The devices that a job computes on: which GPUs are visible, whether enough are, and their names."""

import os
from typing import TYPE_CHECKING

from poslab.errors import ConfigError

if TYPE_CHECKING:
    import torch


VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_devices() -> list[str]:
    """The GPUs that this process sees, as ``CUDA_VISIBLE_DEVICES`` names them."""
    named = os.environ.get(VISIBLE)
    if named is not None:
        return [device for device in named.split(",") if device]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def check_device(accelerator: str, devices: int) -> None:
    """Refuse an accelerator that this machine does not have, and more devices than it has.

    Args:
        accelerator: ``trainer.accelerator``.
        devices: ``trainer.devices``.

    Raises:
        ConfigError: ``trainer=gpu`` without a visible device, or more devices than are visible.
    """
    import torch

    if accelerator == "gpu" and not torch.accelerator.is_available():
        named = os.environ.get(VISIBLE)
        hidden = "" if named is None else f" ({VISIBLE}={named!r})"
        raise ConfigError(
            f"trainer.accelerator=gpu, but torch sees no GPU on this machine{hidden}; use trainer=auto or trainer=cpu"
        )
    visible = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    if accelerator != "cpu" and 0 < visible < devices:
        raise ConfigError(
            f"trainer.devices={devices}, but torch sees {visible} on this machine; use at most {visible}, or "
            "trainer.accelerator=cpu"
        )


def device_name(device: "torch.device") -> str:
    """``cpu``, or a GPU's name and its number on the machine: ``NVIDIA H200 (GPU 1)``."""
    import torch

    if device.type != "cuda":
        return device.type
    index = device.index or 0
    numbers = visible_devices()
    return f"{torch.cuda.get_device_name(index)} (GPU {numbers[index] if index < len(numbers) else index})"
