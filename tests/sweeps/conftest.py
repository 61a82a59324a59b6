"""Sweeps whose jobs are not trained."""

from pathlib import Path

import pytest

from support.played_sweeps import Sweeps


@pytest.fixture
def sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sweeps:
    return Sweeps(tmp_path, monkeypatch, capsys)
