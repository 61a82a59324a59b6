"""What else can happen to a run: each ends in one line or goes on, says what it was, and keeps what was saved."""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import ROOT, RUN, Server, differences, environment, status

IN_PLACE = {"draw_in_background": {"whether": False}}
QUIET = (*RUN, "logger=none", "diagnostics=none")


def result(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text(encoding="utf-8"))


ENDS = {
    "memory, Python's": (
        {"fail": {"point": "step before", "number": 9, "kind": "MemoryError", "message": ""}},
        (),
        "error: out of memory (MemoryError); use a smaller data.batch_size, data.val_batch_size, model or task.length",
    ),
    "memory, torch's": (
        {"limit_memory": {"point": "step before", "number": 9, "spare": 100_000_000}},
        (),
        "error: out of memory (",
    ),
    "worker": (
        {"kill_worker": {"point": "step before", "number": 5}},
        ("data.num_workers=2",),
        "error: RuntimeError: DataLoader worker (pid ",
    ),
}


@pytest.fixture(scope="module")
def whole(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run without dashboard and pictures that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    assert server.start(folder, *QUIET, "hydra.run.dir=run", "resume=auto").code == 0
    return folder / "run"


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.faults] if what != "memory, Python's" else []) for what in ENDS]
)
def test_a_run_that_fails_says_why_and_goes_on_from_its_checkpoint(
    what: str, server: Server, whole: Path, tmp_path: Path
) -> None:
    fault, arguments, said = ENDS[what]
    command = (*QUIET, *arguments, "hydra.run.dir=run", "resume=auto")
    ended = server.start(tmp_path, *command, faults={**IN_PLACE, **fault})
    assert ended.code == 1
    (line,) = ended.err.splitlines()
    assert line.startswith(said), line
    assert "go on:  the same command with resume=auto hydra.run.dir=run" in ended.out
    assert result(tmp_path / "run")["status"] == "failed"
    assert result(tmp_path / "run")["error"]
    again = server.start(tmp_path, *command)
    assert "resume from last.ckpt" in again.out
    assert again.code == 0
    assert differences(tmp_path / "run", whole) == []


@pytest.mark.faults
def test_no_number_after_a_thousand_good_steps(server: Server, tmp_path: Path) -> None:
    """It is stopped at once, says so, and the best checkpoint is one of the good part."""
    steps = ("data.steps_per_epoch=300", "trainer.max_epochs=4", "data.batch_size=4", "trainer.log_every_n_steps=100")
    few = ("trainer.checkpoint_every_n_steps=null", "optimizer.lr=1e-3")
    command = (*QUIET, *steps, *few, "hydra.run.dir=run")
    ended = server.start(tmp_path, *command, faults={"poison": {"number": 1001}})
    assert ended.code == 1
    (line,) = ended.err.splitlines()
    assert line.startswith("error: train/loss is nan at step 1000: the run has diverged; try a lower optimizer.lr")
    found = result(tmp_path / "run")
    assert found["status"] == "diverged"
    assert "train/loss is nan at step 1000" in found["error"]
    for name in ("best", "last"):
        content = torch.load(tmp_path / f"run/checkpoints/{name}.ckpt", weights_only=True)
        assert content["global_step"] in (300, 600, 900)
        assert all(value.isfinite().all() for value in content["state_dict"].values())
    assert content["global_step"] == 900
    used = server.start(tmp_path, "run=run", "checkpoint=best", script="evaluate.py")
    assert (used.code, used.err) == (0, "")


@pytest.mark.faults
@pytest.mark.parametrize("first", [86_400.0, -86_400.0], ids=["back", "forward"])
def test_a_clock_that_jumps(first: float, server: Server, undisturbed: Path, tmp_path: Path) -> None:
    """While it runs, to and fro; and between a run that is killed and the one that goes on, by a day."""
    command = (*RUN, "resume=auto", "hydra.run.dir=run")
    clock = {"shift_clock": {"seconds": first, "jumps": 7}}
    kill = {"kill_at": {"point": "step before", "number": 8}}
    assert server.start(tmp_path, *command, faults={**IN_PLACE, **clock, **kill}).code == -9
    kept = {"shift_clock": {"seconds": first}}
    kill = {"kill_at": {"point": "step before", "number": 2}}
    assert server.start(tmp_path, *command, faults={**IN_PLACE, **kept, **kill}).code == -9
    assert server.start(tmp_path, *command, faults=IN_PLACE).code == 0
    assert differences(tmp_path / "run", undisturbed) == []
    assert 0 < result(tmp_path / "run")["wall_seconds"] < 3600


@pytest.mark.faults
@pytest.mark.parametrize("streams", [[0], [1], [2], [0, 1, 2]], ids=str)
def test_closed_streams(streams: list[int], server: Server, undisturbed: Path, tmp_path: Path) -> None:
    ended = server.start(
        tmp_path, *RUN, "resume=auto", "hydra.run.dir=run", faults={**IN_PLACE, "break_streams": {"which": streams}}
    )
    assert ended.code == 0
    assert ended.err == ""
    assert differences(tmp_path / "run", undisturbed) == []


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "2>&-", ">/dev/full"])
def test_streams_that_a_shell_has_closed_or_that_take_nothing(closed: str, undisturbed: Path, tmp_path: Path) -> None:
    arguments = shlex.join([sys.executable, str(ROOT / "train.py"), *RUN, "resume=auto", "hydra.run.dir=run"])
    ended = subprocess.run(
        ["sh", "-c", f"{arguments} {closed}"],
        cwd=tmp_path,
        env={**os.environ, **environment()},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert differences(tmp_path / "run", undisturbed) == []


@pytest.mark.faults
def test_no_home_and_no_terminal(server: Server, undisturbed: Path, tmp_path: Path) -> None:
    without = ("HOME", "USER", "LOGNAME", "TERM", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR", "LANG", "LC_ALL")
    ended = server.start(tmp_path, *RUN, "resume=auto", "hydra.run.dir=run", faults=IN_PLACE, without=without)
    assert (ended.code, ended.err) == (0, "")
    assert not {"\x1b", "\r"} & set(ended.out)
    assert differences(tmp_path / "run", undisturbed) == []


def test_names_with_spaces_and_other_letters(server: Server, tmp_path: Path) -> None:
    """The command that the run prints at its end goes on with it, in such a folder too."""
    here = tmp_path / "Läufe, it's 日本 $HOME"
    here.mkdir()
    name = "mein Lauf, ein 'Versuch' = ü"
    fault = {"fail": {"point": "step before", "number": 9, "kind": "MemoryError", "message": ""}}
    command = [*QUIET, "hydra.run.dir='" + name.replace("'", "\\'") + "'"]
    ended = server.start(here, *command, faults=fault)
    assert ended.code == 1
    assert status(here / name) == "failed"
    (line,) = [line for line in ended.out.splitlines() if line.startswith("go on:")]
    typed = shlex.split(line.partition("the same command with ")[2])
    again = server.start(here, *QUIET, *typed)
    assert (again.code, again.err) == (0, "")
    assert status(here / name) == "completed"
    assert [path.name for path in here.iterdir()] == [name]
    used = server.start(here, f"run={name}", script="evaluate.py")
    assert (used.code, used.err) == (0, "")


@pytest.mark.faults
def test_ten_thousand_runs_are_there_already(server: Server, tmp_path: Path) -> None:
    job = (*QUIET, "data.steps_per_epoch=2", "trainer.max_epochs=1")

    def seconds(*arguments: str, script: str = "train.py") -> float:
        began = time.monotonic()
        ended = server.start(tmp_path, *arguments, script=script)
        assert (ended.code, ended.err) == (0, "")
        return time.monotonic() - began

    seconds(*job)
    grid = ("-m", "seed=1,2", *job)
    alone = min(seconds(*job) for _ in range(3)), seconds(*grid), seconds("run=latest", script="evaluate.py")
    (model, *_) = (tmp_path / "outputs/runs").iterdir()
    files = {name: (model / name).read_bytes() for name in ("config.yaml", "result.json")}
    for number in range(10_000):
        copy = tmp_path / f"outputs/runs/copy-learned-d16-h4-s0_20200101-000000-{number:05d}"
        copy.mkdir()
        for name, content in files.items():
            (copy / name).write_bytes(content)
    before = len(list((tmp_path / "outputs/runs").iterdir()))
    crowded = min(seconds(*job) for _ in range(3)), seconds(*grid)
    assert len(list((tmp_path / "outputs/runs").iterdir())) == before + 3
    assert crowded[0] < alone[0] + 1
    assert crowded[1] < alone[1] + 2
    assert seconds("run=latest", script="evaluate.py") < alone[2] + 2
