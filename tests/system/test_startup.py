"""Imports and exits without garbage collection, and that it is back in between."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from poslab.system import startup
from poslab.system.startup import quick_imports


@pytest.fixture(autouse=True)
def _collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tests themselves are frozen once they are found."""
    monkeypatch.setattr(startup, "HEAVIEST", "not.imported.yet")
    gc.unfreeze()
    yield
    gc.freeze()
    gc.enable()


def test_nothing_is_collected_inside_and_everything_is_left_alone_afterwards() -> None:
    with quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 1000


def test_collecting_is_on_again_after_an_import_that_fails() -> None:
    with pytest.raises(ImportError), quick_imports():
        import no_such_package  # type: ignore[import-not-found] # noqa: F401
    assert gc.isenabled()


def test_who_has_switched_it_off_keeps_it_off() -> None:
    gc.disable()
    with quick_imports():
        assert not gc.isenabled()
    assert not gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_a_second_time_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "HEAVIEST", "sys")
    with quick_imports():
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_a_process_ends_with_everything_frozen() -> None:
    script = (
        "import atexit, gc\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 1000))\n"
        "from poslab.system.startup import quick_exit\n"
        "quick_exit()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "True\n"
