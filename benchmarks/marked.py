"""Run a script like ``python SCRIPT ARGUMENTS`` and record the times of its first and last optimiser step.

    BENCH_MARKS=marks.json python benchmarks/marked.py train.py pos=alibi

For a poslab run it also records when ``fit`` ended and how long the diagnostics took. `Marks` does the same for runs in
the current process. This file imports no large package before the script does, so that the start is measured right.
"""

import atexit
import functools
import importlib.abc
import importlib.util
import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Marks:
    """Clock times of one run, in seconds since the epoch; durations in seconds."""

    def __init__(self) -> None:
        self.first_step = self.last_step = self.fit_end = 0.0
        self.step_times: list[float] = []
        self.diagnostics = self.diagnostics_before = self.diagnostics_by_fit_end = 0.0
        """Time spent waiting for diagnostics: in total, before the first step, and until ``fit`` had ended."""
        self._inside = 0

    @property
    def steps(self) -> int:
        return len(self.step_times)

    def watch_optimizers(self, optimizer_module: Any) -> None:
        optimizer_module.register_optimizer_step_pre_hook(self._before_step)
        optimizer_module.register_optimizer_step_post_hook(self._after_step)

    def watch_runs(self, _: Any = None) -> None:
        """Time the diagnostics and ``fit`` of poslab runs."""
        import lightning

        from poslab.diagnostics import Gallery
        from poslab.diagnostics.base import Diagnostic

        for owner in (Diagnostic, Gallery):
            for name in ("on_train_start", "on_validation_end", "on_train_end", "on_fit_end"):
                setattr(owner, name, self._timed(getattr(owner, name)))
        # A run waits for its last pictures after fit has ended.
        Gallery.close = self._timed(Gallery.close)  # type: ignore[method-assign]
        lightning.Trainer.fit = self._until_the_end(lightning.Trainer.fit)  # type: ignore[method-assign]

    def _before_step(self, *_: Any) -> None:
        if not self.step_times:
            self.first_step = time.time()
            self.diagnostics_before = self.diagnostics

    def _after_step(self, *_: Any) -> None:
        self.last_step = time.time()
        self.step_times.append(self.last_step)

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed(*arguments: Any, **options: Any) -> Any:
            started = time.perf_counter()
            self._inside += 1
            try:
                return method(*arguments, **options)
            finally:
                self._inside -= 1
                # Only the outermost call counts, so that nested calls are not counted twice.
                if not self._inside:
                    self.diagnostics += time.perf_counter() - started

        return timed

    def _until_the_end(self, fit: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fit)
        def marked(*arguments: Any, **options: Any) -> Any:
            try:
                return fit(*arguments, **options)
            finally:
                self.fit_end = time.time()
                self.diagnostics_by_fit_end = self.diagnostics

        return marked


class AfterImport(importlib.abc.MetaPathFinder):
    """Import hook that calls a function once after a module has been imported.

    Args:
        actions: module name to the function, which gets the module.
    """

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self.actions = actions

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        action = self.actions.pop(name, None)
        spec = None if action is None else importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            assert action is not None
            action(module)

        spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec


def main() -> None:
    marks = Marks()
    finder = AfterImport({"torch.optim.optimizer": marks.watch_optimizers, "poslab.experiment.run": marks.watch_runs})
    sys.meta_path.insert(0, finder)

    def write() -> None:
        with open(os.environ["BENCH_MARKS"], "w", encoding="utf-8") as file:
            json.dump(
                {
                    name: value
                    for name, value in vars(marks).items()
                    if not name.startswith("_") and name != "step_times"
                },
                file,
            )

    atexit.register(write)
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
