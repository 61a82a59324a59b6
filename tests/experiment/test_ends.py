"""How a run ends before or beside its training, and what it leaves then."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback

from poslab.errors import PrunedError
from poslab.experiment.run import run
from poslab.runs.folder import RunFolder
from poslab.runs.result import stored_result, stored_status
from support.configs import compose
from support.runs import train
from support.stopping import TINY, Wholes, assert_same


class Prunes(Callback):
    """Ends a trial after its first epoch, as a search does."""

    def on_validation_end(self, *arguments: Any) -> None:
        raise PrunedError("pruned at step 12 of 24")


def test_a_pruned_trial_is_pruned_and_can_go_on(tmp_path: Path, whole: Wholes) -> None:
    run(compose(*TINY), tmp_path / "run", brief=True, callbacks=[Prunes()])
    found = stored_result(tmp_path / "run")
    assert (found["status"], found["error"]) == ("pruned", "PrunedError: pruned at step 12 of 24")
    train(tmp_path / "run", *TINY, "resume=auto")
    assert_same(tmp_path / "run", whole())


@pytest.mark.parametrize("where", ["clear_parts", "mark_unfinished"])
def test_an_error_just_after_the_claim_is_recorded(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*arguments: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(RunFolder, where, fails)
    with caplog.at_level("INFO"), pytest.raises(OSError, match="Input/output error"):
        run(compose(*TINY), tmp_path / "run", brief=True)
    assert stored_status(tmp_path / "run") == "failed"
    assert "Input/output error" in stored_result(tmp_path / "run")["error"]
    assert "Input/output error" in caplog.text
