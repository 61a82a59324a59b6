"""A process begins and ends without looking for garbage, which takes a fifth of its imports and most of its exit."""

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

HEAVIEST = "poslab.experiment.run"


@contextmanager
def quick_imports() -> Iterator[None]:
    """Inside, packages are imported and nothing is collected.

    Modules stay until the process ends, so there is nothing to be found among them then or later: they are also left
    out of every later search, which would besides make forked children copy the memory that they share (``gc.freeze``).
    """
    if not gc.isenabled() or HEAVIEST in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def quick_exit() -> None:
    """Have this process end without a search through everything that is about to be given back anyway."""
    atexit.register(gc.freeze)
