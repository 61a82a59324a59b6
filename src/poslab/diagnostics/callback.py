"""One callback for all diagnostics of all replicas."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback

from poslab.diagnostics.base import Diagnostic
from poslab.training.module import TrainingModule

HOOKS = [name for name in vars(Callback) if name.startswith("on_") or name in ("setup", "teardown")]


class Diagnostics(Callback):
    """Calls the hooks that the diagnostics implement, and has no other hooks.

    Lightning spends time on each callback at six places of a step, even if the callback does nothing there.

    The diagnostics of all replicas compute numbers, of which the run logs the means. Only the first replica's draw.

    Args:
        by_replica: the diagnostics of each replica.
    """

    def __init__(self, by_replica: Sequence[Sequence[Diagnostic]]) -> None:
        super().__init__()
        self.by_replica = by_replica
        for replica, diagnostics in enumerate(by_replica):
            for diagnostic in diagnostics:
                diagnostic.replica = replica
                if replica:
                    diagnostic.gallery = None
        everyone = [diagnostic for diagnostics in by_replica for diagnostic in diagnostics]
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
        if isinstance(module, TrainingModule) and trainer.is_global_zero:
            module.replicas.log_means(trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        return {"replicas": [{type(one).__qualname__: one.state_dict() for one in each} for each in self.by_replica]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for each, stored in zip(self.by_replica, state_dict["replicas"], strict=True):
            for one in each:
                # A resumed run may have other diagnostics than before.
                if type(one).__qualname__ in stored:
                    one.load_state_dict(stored[type(one).__qualname__])


def inspecting(trainer: lightning.Trainer, replica: int = 0) -> list[Diagnostic]:
    """The diagnostics of one replica of a run."""
    found: list[Diagnostic] = []
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, Diagnostic):
            found.append(callback)
        elif isinstance(callback, Diagnostics):
            found += callback.by_replica[replica]
    return found
