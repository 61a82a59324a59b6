"""How many parameters a module trains, whole and by part."""

from collections.abc import Mapping

from torch import nn


def count_parameters(module: nn.Module) -> int:
    """Trainable parameters of ``module``, shared ones once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def parameters_by_part(parts: Mapping[str, nn.Module]) -> dict[str, int]:
    """Trainable parameters of each part and their ``total``; a parameter in two parts counts in the first.

    Args:
        parts: name to module, as a model's ``parts()`` gives them.
    """
    seen: set[int] = set()
    counts = {}
    for name, module in parts.items():
        fresh = [p for p in module.parameters() if p.requires_grad and id(p) not in seen]
        seen.update(id(p) for p in fresh)
        counts[name] = sum(p.numel() for p in fresh)
    return {"total": sum(counts.values()), **counts}
