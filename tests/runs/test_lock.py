"""A run, a sweep and a search have their folder to themselves."""

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from poslab.errors import ConfigError
from poslab.experiment import record
from poslab.runs.result import stored_result, stored_status
from poslab.system.lock import LOCK_FILE
from support.commands import typed
from support.holding import held_by_another
from support.runs import train
from support.stopping import TINY, Wholes, assert_same, told_to_stop
from support.unreadable import everything

USED = r"run is in use by process \d+ on \S+ since"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was stopped at step 14."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        told_to_stop(folder, 14, patch)
    return folder


def test_a_run_is_not_resumed_while_another_process_runs_it(stopped: Path, whole: Wholes, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    before = everything(folder)
    with held_by_another(folder):
        with pytest.raises(ConfigError, match=USED):
            train(folder, *TINY, "resume=auto")
        assert everything(folder) == before
    train(folder, *TINY, "resume=auto")
    assert_same(folder, whole())


def test_a_new_run_does_not_begin_in_a_folder_in_use(tmp_path: Path) -> None:
    with held_by_another(tmp_path / "run"), pytest.raises(ConfigError, match=USED):
        train(tmp_path / "run", *TINY)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK_FILE]


def test_a_complete_run_needs_no_lock(whole: Wholes, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole(), tmp_path / "run"))
    (folder / LOCK_FILE).unlink()
    train(folder, *TINY, "resume=auto")
    assert not (folder / LOCK_FILE).exists()


def test_a_job_of_a_sweep_waits_for_the_end_of_the_one_before(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker ends a few seconds after its sweep was killed."""
    from poslab.experiment.run import run
    from support.configs import compose

    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    monkeypatch.setattr("poslab.experiment.run.train", lambda *arguments: None)
    monkeypatch.setattr(record.RunRecord, "conclude", lambda self: 0.0)
    with held_by_another(folder, seconds=0.3):
        run(compose(*TINY, "resume=auto"), folder, brief=True)


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.faults)])
def test_of_two_processes_one_goes_on(
    times: int, stopped: Path, whole: Wholes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = record.RunRecord.watch

    def watch(self: record.RunRecord, *arguments: Any) -> None:
        # So that the other process looks at the folder before this one has completed the run.
        time.sleep(0.5)
        real(self, *arguments)

    monkeypatch.setattr(record.RunRecord, "watch", watch)
    for number in range(times):
        folder = Path(shutil.copytree(stopped, tmp_path / str(number) / "run"))
        children = []
        for child in range(2):
            if (process := os.fork()) == 0:
                said = ""
                try:
                    train(folder, *TINY, "resume=auto")
                except ConfigError as refused:
                    said = str(refused)
                finally:
                    (tmp_path / f"{number}.{child}").write_text(f"{os.getpid()}\n{said}")
                    os._exit(0)
            children.append(process)
        for process in children:
            os.waitpid(process, 0)
        ends = [(tmp_path / f"{number}.{child}").read_text().split("\n") for child in range(2)]
        (winner,) = [process for process, said in ends if not said]
        (refused,) = [said for _, said in ends if said]
        assert re.search(rf"run is in use by process {winner} on", refused)
        assert_same(folder, whole())


def test_a_sweep_is_not_resumed_while_another_process_runs_it(tmp_path: Path) -> None:
    """Each would set failed jobs aside under the other's feet."""
    job = tmp_path / "sweep" / "a-1"
    job.mkdir(parents=True)
    (tmp_path / "sweep/sweep.json").write_text("[]")
    (job / "result.json").write_text(json.dumps({"status": "failed"}))
    with held_by_another(tmp_path / "sweep"):
        said = typed(tmp_path, "-m", "seed=1,2", *TINY, f"sweep.resume={tmp_path / 'sweep'}")
    assert re.match(r"error: \S+/sweep is in use by process \d+ on", str(said))
    assert stored_status(job) == "failed"
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == [LOCK_FILE, "a-1", "sweep.json"]


def test_the_lock_of_a_run_is_free_after_it(whole: Wholes, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole(), tmp_path / "run"))
    (folder / "result.json").write_text(json.dumps(stored_result(folder) | {"status": "failed"}))
    for _ in range(2):
        with pytest.raises(ConfigError, match="other settings"):
            train(folder, *TINY, "resume=auto", "optimizer.lr=0.1")
    train(folder, *TINY, "resume=auto")
    assert stored_status(folder) == "completed"
