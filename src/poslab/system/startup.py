"""How a process starts and ends: its streams, and no garbage collection during imports and at its exit.

The collection takes a fifth of the time of the imports and most of the time of the exit.
"""

import atexit
import gc
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager

HEAVIEST = "poslab.experiment.run"


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import packages in here without garbage collection, and exclude them from later collections (``gc.freeze``).

    Modules stay until the process ends, so a search for garbage among them finds nothing, and it would make forked
    children copy the memory that they share.
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


def print_anything() -> None:
    """Have a character that a stream cannot encode written as ``\\u2502``, instead of losing the whole text.

    A redirected output or an old terminal may be ASCII or cp1252.
    """
    for stream in (sys.stdout, sys.stderr):
        # None: the process was started without the stream. In a notebook it is of another kind.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def quick_exit() -> None:
    """End this process without a last garbage collection."""
    atexit.register(gc.freeze)
