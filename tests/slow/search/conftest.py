"""A console in a folder of its own."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.played_searches import Console


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Console":
    from support.played_searches import Console

    return Console(tmp_path, monkeypatch)
