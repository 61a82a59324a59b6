"""A job that fails before its training is in the table at the end of its sweep, with the reason."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from poslab.errors import ConfigError
from poslab.runs.folder import RunFolder
from support.commands import only_sweep, typed

QUICK = ("trainer=cpu", "trainer.max_steps=1", "data.val_examples=8", "diagnostics=none", "logger=none")


def test_whatever_the_moment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the folder is the job's, when no result can be left there, and just after."""
    steps = iter(range(9))

    def refuses(self: RunFolder) -> None:
        if next(steps) == 0:
            raise ConfigError(f"{self.path.name} is in use by process 7")

    def fails(self: RunFolder) -> None:
        raise OSError(5, "Input/output error")

    def nothing(*arguments: Any) -> SimpleNamespace:
        return SimpleNamespace(statements=[])

    monkeypatch.setattr(RunFolder, "check_usable", refuses)
    monkeypatch.setattr(RunFolder, "clear_parts", fails)
    monkeypatch.setattr("poslab.comparison.write_comparison", nothing)
    assert typed(tmp_path, "-m", "seed=1,2", *QUICK) == 1
    lines = capsys.readouterr().out.splitlines()
    folder = only_sweep(tmp_path)
    first, second = sorted(path.name for path in folder.iterdir() if path.is_dir())
    assert f"not started  {first} (ConfigError: {first} is in use by process 7)" in lines
    assert f"failed       {second} (OSError: [Errno 5] Input/output error)" in lines
    for name, reason in ((first, "in use by process 7"), (second, "Input/output error")):
        assert reason in (folder / name / "train.log").read_text()
