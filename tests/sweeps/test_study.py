"""The stored study of a search: a journal that was cut, and a folder that was renamed."""

import json
from pathlib import Path

import pytest

from poslab.errors import ConfigError
from support.runs import said

pytest.importorskip("optuna", reason="the extra [optuna] is not installed")

import optuna

from poslab.sweeps.search.options import JOURNAL_FILE, open_storage, quiet
from poslab.sweeps.search.study import repair_journal, study_name


def journal(folder: Path, trials: int = 3) -> Path:
    """The journal of a study with finished trials."""
    with quiet():
        study = optuna.create_study(study_name="s", storage=open_storage(None, folder))
        for number in range(trials):
            trial = study.ask({"rate": optuna.distributions.FloatDistribution(0, 1)})
            study.tell(trial, float(number))
    return folder / JOURNAL_FILE


def finished(folder: Path) -> int:
    with quiet():
        study = optuna.load_study(study_name="s", storage=open_storage(None, folder))
        return len(study.get_trials(states=[optuna.trial.TrialState.COMPLETE]))


@pytest.mark.parametrize("tail", [b'{"op_code":5,"wor', bytes(40), b"\n", b'{"op_code":5}'], ids=repr)
def test_half_a_record_is_cut_off_and_the_search_can_append(
    tail: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = journal(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    repair_journal(path)
    assert path.read_bytes() == whole
    assert said(caplog)[0].startswith(f"{path} is damaged; it is cut back to its last whole record")
    with quiet():
        study = optuna.load_study(study_name="s", storage=open_storage(None, tmp_path))
        study.tell(study.ask(), 9.0)
    assert finished(tmp_path) == 4
    repair_journal(path)
    assert len(said(caplog)) == 1


def test_what_was_appended_to_half_a_record_is_kept_in_another_file(tmp_path: Path) -> None:
    """As earlier versions left it: nothing could read such a journal again."""
    path = journal(tmp_path)
    lines = path.read_bytes().split(b"\n")
    spoilt = b"\n".join([*lines[:-3], lines[-3][:20] + lines[-2], b""]) + b'{"op_code":4}\n'
    path.write_bytes(spoilt)
    with pytest.raises(json.JSONDecodeError):
        finished(tmp_path)
    repair_journal(path)
    assert path.read_bytes() == b"\n".join([*lines[:-3], b""])
    assert (tmp_path / f"{JOURNAL_FILE}.damaged").read_bytes() == spoilt
    assert finished(tmp_path) == 2


def test_a_missing_journal(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        repair_journal(tmp_path / JOURNAL_FILE)


def test_the_name_of_a_renamed_search(tmp_path: Path) -> None:
    folder = tmp_path / "after"
    folder.mkdir()
    assert study_name(folder, ["after", "before"]) == "after"
    # In a journal of its own; a database may have studies of others.
    assert study_name(folder, ["before"]) == "before"
    assert study_name(folder, ["before", "another"]) == "after"
    (folder / "search.json").write_text(json.dumps({"study": "before"}))
    assert study_name(folder, ["before", "another"]) == "before"
    (tmp_path / "before").mkdir()
    (tmp_path / "before/search.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"after is a copy of .*before, whose study it would share"):
        study_name(folder, ["before", "another"])
