"""A disk that is full or read-only, a folder that is removed: one line, and nothing that was saved is lost."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import ROOT, RUN, Server, differences, environment, status

IN_PLACE = {"draw_in_background": {"whether": False}}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


FULL_AT = {
    "a checkpoint": ("checkpoint before", 3),
    "an event": ("event before", 60),
    "a picture": ("picture before", 9),
    "the end": ("session before", 1),
}


@pytest.mark.parametrize(
    "when", [pytest.param(when, marks=[pytest.mark.faults] if when != "a checkpoint" else []) for when in FULL_AT]
)
def test_a_full_disk_ends_the_run_in_one_line_and_it_goes_on_when_there_is_room(
    when: str, server: Server, undisturbed: Path, disk: Path
) -> None:
    point, number = FULL_AT[when]
    fault = {"fill_disk": {"point": point, "number": number, "folder": str(disk)}}
    command = (*RUN, "resume=auto", "hydra.run.dir=run")
    ended = server.start(disk, *command, faults={**IN_PLACE, **fault})
    assert ended.code == 1
    (line,) = ended.err.splitlines()
    assert line.startswith("error: No space left on device"), line
    assert "resume=auto" in line
    assert "go on:  the same command with resume=auto hydra.run.dir=run" in ended.out
    result = json.loads((disk / "run/result.json").read_text())
    assert result["status"] == "failed"
    assert "No space left on device" in result["error"]
    assert result["parameters"]["total"] > 0
    (disk / "ballast").unlink()
    assert server.start(disk, *command, faults=IN_PLACE).code == 0
    assert differences(disk / "run", undisturbed) == []


@pytest.mark.parametrize("arguments", [(), pytest.param(("logger=none", "diagnostics=none"), marks=pytest.mark.faults)])
def test_a_folder_that_is_removed_ends_the_run_and_is_not_made_again(
    arguments: tuple[str, ...], server: Server, tmp_path: Path
) -> None:
    fault = {"remove": {"point": "step before", "number": 5, "folder": str(tmp_path / "run")}}
    ended = server.start(tmp_path, *RUN, *arguments, "hydra.run.dir=run", faults={**IN_PLACE, **fault})
    assert ended.code == 1
    assert (
        ended.err == f"error: {tmp_path / 'run'} was removed during its run, so nothing is left; repeat the command\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def read_only_checkout(tmp_path: Path) -> Iterator[Path]:
    """The sources as they stand on a medium that nobody can write to."""
    copy, mounted = tmp_path / "copy", tmp_path / "checkout"
    for name in ("src", "conf"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("train.py", "evaluate.py", "generate.py"):
        shutil.copy(ROOT / name, copy / name)
    mounted.mkdir()
    steps = (["mount", "--bind", copy, mounted], ["mount", "-o", "remount,ro,bind", mounted])
    if any(subprocess.run([*map(str, step)], capture_output=True).returncode for step in steps):
        pytest.skip("a folder can be mounted read-only by root only")
    yield mounted
    subprocess.run(["umount", "--lazy", str(mounted)], check=True)


@pytest.mark.faults
@pytest.mark.process
def test_a_read_only_checkout_trains_into_another_folder(read_only_checkout: Path, tmp_path: Path) -> None:
    def typed(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, script, *arguments],
            cwd=read_only_checkout,
            env={**os.environ, **environment(), "PYTHONPATH": str(read_only_checkout / "src")},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    refused = typed("train.py", *RUN)
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert "Read-only file system" in line
    assert "hydra.run.dir=" in line
    trained = typed("train.py", *RUN, f"hydra.run.dir={tmp_path / 'elsewhere'}")
    assert (trained.returncode, trained.stderr) == (0, "")
    assert status(tmp_path / "elsewhere") == "completed"
    evaluated = typed("evaluate.py", f"run={tmp_path / 'elsewhere'}")
    assert (evaluated.returncode, evaluated.stderr) == (0, "")


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.parametrize(("size", "said"), [("400k", "cannot send their batches"), ("4k", "cannot start")])
def test_data_workers_without_shared_memory_end_the_run_in_one_line(size: str, said: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "train.py"), *RUN, "data.num_workers=2", "data.batch_size=2048"]
    inside = f"mount -t tmpfs -o size={size} tmpfs /dev/shm || exit 99; exec " + shlex.join(command)
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", inside],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if ended.returncode not in (0, 1):
        pytest.skip("a file system can be mounted by root only")
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"error: the data workers {said}; they need room in /dev/shm, which has ")
    assert ended.returncode == 1
