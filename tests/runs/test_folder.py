"""A run folder: claimed by one run, and it says until the end that the run has not ended."""

import math
import threading
from pathlib import Path

import pytest

from poslab.config.schema import checked
from poslab.errors import ConfigError
from poslab.runs.folder import RunFolder
from poslab.runs.result import Result
from support.commands import typed
from support.configs import compose
from support.runs import read_json, train


def test_of_many_that_claim_a_folder_at_once_one_gets_it(tmp_path: Path):
    job = checked(compose())
    barrier = threading.Barrier(8)
    outcomes: list[str] = []

    def claim(number: int) -> None:
        barrier.wait()
        try:
            RunFolder(tmp_path).claim(job, [f"seed={number}"])
        except ConfigError as error:
            outcomes.append(str(error))
        else:
            outcomes.append(f"seed={number}")

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [outcome for outcome in outcomes if outcome.startswith("seed=")]
    assert len(winners) == 1
    assert all(str(tmp_path) in outcome and "another run" in outcome for outcome in outcomes if outcome not in winners)
    assert read_json(tmp_path / "result.json")["overrides"] == winners


def test_a_second_run_leaves_the_first_as_it_was(tmp_path: Path):
    quick = ("trainer.max_steps=1", "data.val_examples=4", "diagnostics=none")
    train(tmp_path, *quick)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="already holds a run"):
        train(tmp_path, *quick, "seed=1")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_two_runs_that_start_together_get_two_folders(tmp_path: Path):
    quick = ("trainer.max_steps=1", "data.val_examples=4", "diagnostics=none", "logger=none")
    for _ in range(2):
        assert typed(tmp_path, *quick) is None
    assert len(list((tmp_path / "outputs" / "runs").iterdir())) == 2


def test_a_folder_that_is_there_and_empty_is_used(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    RunFolder(tmp_path / "mine").check_usable()
    RunFolder(tmp_path / "mine").claim(checked(compose()), [])
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep me"


def test_until_it_ends_a_run_says_that_it_has_not(tmp_path: Path):
    folder = RunFolder(tmp_path)
    folder.claim(checked(compose("seed=4")), ["seed=4"])
    found = read_json(tmp_path / "result.json")
    assert (found["status"], found["seed"], found["overrides"]) == ("interrupted", 4, ["seed=4"])
    folder.finish(Result(status="completed", seed=4))
    assert read_json(tmp_path / "result.json")["status"] == "completed"


def test_a_number_that_is_none_never_gets_into_the_result(tmp_path: Path):
    with pytest.raises(ValueError, match="JSON"):
        RunFolder(tmp_path).finish(Result(status="completed", seed=0, metrics={"val/loss": math.nan}))
    assert not (tmp_path / "result.json").exists()
