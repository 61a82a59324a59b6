"""All diagnostics of a run as one callback; of a bundle, those of every copy."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback

from poslab.diagnostics.base import Diagnostic
from poslab.training.bundle import BundleModule

HOOKS = [name for name in vars(Callback) if name.startswith("on_") or name in ("setup", "teardown")]


class Looks(Callback):
    """Calls each diagnostic where it has a hook of its own, and nowhere else.

    Lightning takes its time over every callback at six places of a step, whether or not it does anything there: a dozen
    of them take the default model as long as its optimiser.

    All copies of a bundle find their numbers, of which it shows the mean; only the first copy's diagnostics draw.

    Args:
        by_copy: the diagnostics of each copy, in order of the copies; of a single model, of this one.
    """

    def __init__(self, by_copy: Sequence[Sequence[Diagnostic]]) -> None:
        super().__init__()
        self.by_copy = by_copy
        for copy, diagnostics in enumerate(by_copy):
            for diagnostic in diagnostics:
                diagnostic.copy = copy
                if copy:
                    diagnostic.gallery = None
        everyone = [diagnostic for diagnostics in by_copy for diagnostic in diagnostics]
        for name in HOOKS:
            own = [getattr(one, name) for one in everyone if getattr(type(one), name) is not getattr(Callback, name)]
            if own:
                setattr(self, name, partial(self._call, own))

    def _call(
        self, hooks: Sequence[Callable[..., None]], trainer: lightning.Trainer, *arguments: Any, **named: Any
    ) -> None:
        for hook in hooks:
            hook(trainer, *arguments, **named)
        module = trainer.lightning_module
        if isinstance(module, BundleModule):
            module.copies.share_means(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"copies": [{type(one).__qualname__: one.state_dict() for one in each} for each in self.by_copy]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for each, stored in zip(self.by_copy, state_dict["copies"], strict=True):
            for one in each:
                # Other diagnostics may be asked for when a run goes on.
                if type(one).__qualname__ in stored:
                    one.load_state_dict(stored[type(one).__qualname__])


def looking(trainer: lightning.Trainer, copy: int = 0) -> list[Diagnostic]:
    """The diagnostics of a run; of a bundle, those of one copy."""
    found: list[Diagnostic] = []
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Diagnostic):
            found.append(callback)
        elif isinstance(callback, Looks):
            found += callback.by_copy[copy]
    return found
