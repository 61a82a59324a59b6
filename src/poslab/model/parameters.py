"""Count the trainable parameters of a module, in total and by part."""

from collections.abc import Mapping

from torch import nn


def count_parameters(module: nn.Module) -> int:
    """Number of trainable parameters of ``module``; a shared parameter counts once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def parameters_by_part(parts: Mapping[str, nn.Module]) -> dict[str, int]:
    """Number of trainable parameters of each part and their ``total``.

    A parameter that belongs to two parts counts in the first of them only.

    Args:
        parts: name to module, as returned by a model's ``parts()``.
    """
    seen: set[int] = set()
    counts = {}
    for name, module in parts.items():
        fresh = [p for p in module.parameters() if p.requires_grad and id(p) not in seen]
        seen.update(id(p) for p in fresh)
        counts[name] = sum(p.numel() for p in fresh)
    return {"total": sum(counts.values()), **counts}
