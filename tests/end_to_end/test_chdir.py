"""With ``hydra.job.chdir=true`` paths are those of the folder where the command was typed."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from poslab.runs.result import stored_status
from poslab.system.shell import remember_typed_in, shown_path, typed_path
from support.commands import typed

QUICK = ("trainer=cpu", "trainer.max_steps=2", "data.val_examples=8", "diagnostics=none", "logger=none")
ROWS = ("hydra.job.chdir=true", "model.token_init=file", "model.token_file=rows.npy")


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> Iterator[None]:
    yield
    remember_typed_in(None)


@pytest.mark.parametrize("where", [("hydra.run.dir=sub/run",), ("-m", "seed=1", "hydra.sweep.dir=sub")])
def test_a_relative_file_is_found_and_the_printed_commands_work(
    where: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((65, 32), np.float32))
    assert typed(tmp_path, *where, *ROWS, *QUICK) is None
    (config,) = tmp_path.glob("sub/*/config.yaml")
    run = config.parent.relative_to(tmp_path)
    assert stored_status(config.parent) == "completed"
    assert "token_file: rows.npy" in config.read_text(), "as typed"
    said = capsys.readouterr().out
    assert f"run    {run}\n" in said
    used = [shlex.split(line.partition(": ")[2]) for line in said.splitlines() if line.startswith("use it: ")]
    assert all(command[-1] == f"run={run}" and Path(command[1]).exists() for command in used)
    assert len(used) == (0 if "-m" in where else 2)


def test_a_typed_path_is_usable_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    assert typed_path("a/b.ckpt") == Path("a/b.ckpt")
    remember_typed_in(tmp_path)
    assert typed_path("a/b.ckpt") == tmp_path / "a/b.ckpt"
    assert typed_path("/a/b.ckpt") == Path("/a/b.ckpt")
    assert shown_path(tmp_path / "run") == Path("run")
