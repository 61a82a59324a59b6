"""A replica that diverges is frozen and the others go on as if it were not there."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from poslab.errors import DivergedError
from poslab.runs.result import stored_result
from poslab.sweeps.plan import Job
from poslab.sweeps.sweep import Sweep
from support.replica_runs import DECAYED, QUIET, TINY, lose, rows, rows_of, weights
from support.runs import train


def test_a_diverging_copy_stays_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (*TINY, *DECAYED, "logger=none", "trainer.log_every_n_steps=1", "seeds=3")
    undisturbed = train(tmp_path / "undisturbed", *options)
    until_then = train(tmp_path / "until_then", *options, "trainer.max_steps=7")
    lose(monkeypatch, (1,), 7)
    with pytest.raises(DivergedError, match=r"1 of 3 replicas diverged; seed 1: train/loss is nan at step 7"):
        train(tmp_path / "bundle", *options)
    bundle = tmp_path / "bundle"
    for seed in (0, 2):
        copies = [folder / f"copies/seed{seed}" for folder in (bundle, undisturbed)]
        assert (copies[0] / "metrics.csv").read_bytes() == (copies[1] / "metrics.csv").read_bytes()
        for name in ("last", "best"):
            one, two = (weights(copy, name) for copy in copies)
            assert all(torch.equal(one[key], two[key]) for key in one)
        assert stored_result(copies[0])["status"] == "completed"
    lost = stored_result(bundle / "copies/seed1")
    assert lost["status"] == "diverged"
    assert lost["error"].startswith("DivergedError: train/loss is nan at step 7")
    assert max(row["step"] for row in rows(bundle / "copies/seed1")) == 6
    # Its parameters are those after seven updates, to the end.
    now, then = weights(bundle), weights(until_then)
    assert all(torch.equal(now[name][1], then[name][1]) for name in now)
    result = stored_result(bundle)
    assert result["status"] == "completed"
    assert result["metrics"]["copies/completed"] == 2
    well = [stored_result(bundle / f"copies/seed{seed}")["metrics"]["val/loss"] for seed in (0, 2)]
    assert result["metrics"]["val/loss"] == pytest.approx(np.mean(well))
    assert all(np.isfinite(list(row.values())).all() for row in rows(bundle))


@pytest.mark.parametrize("lost", [False, True])
def test_a_sweep_with_a_lost_copy_ends_as_one_with_a_lost_job(
    three_seeds: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: bool
) -> None:
    shutil.copytree(three_seeds / "bundle", tmp_path / "sweep/bundle")
    if lost:
        result = stored_result(three_seeds / "bundle") | {
            "error": "1 of 3 replicas diverged; seed 4: train/loss is nan"
        }
        (tmp_path / "sweep/bundle/result.json").write_text(json.dumps(result))
    sweep = Sweep.__new__(Sweep)
    sweep.folder, sweep.jobs, sweep.invalid = tmp_path / "sweep", {"key": Job(["seeds=3"], name="bundle")}, []
    sweep.errors = {}
    with caplog.at_level("INFO"):
        assert sweep.conclude() is not lost
    assert ("1 of 3 replicas diverged" in caplog.text) is lost
    assert len(rows_of(tmp_path / "sweep/comparison.csv")) == 3


def test_without_a_copy_left_the_run_has_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lose(monkeypatch, (0, 1), 3)
    with pytest.raises(DivergedError, match="all 2 replicas have diverged"):
        train(tmp_path / "bundle", *TINY, *QUIET, "seeds=2")
    assert stored_result(tmp_path / "bundle")["status"] == "diverged"
    for seed in (0, 1):
        assert stored_result(tmp_path / f"bundle/copies/seed{seed}")["status"] == "diverged"


def test_a_real_divergence_ends_as_alone(tmp_path: Path) -> None:
    options = (*TINY, *QUIET, "optimizer.lr=1e19")
    with pytest.raises(DivergedError):
        train(tmp_path / "bundle", *options, "seeds=2")
    with pytest.raises(DivergedError):
        train(tmp_path / "alone", *options, "seed=1")
    copy, alone = (stored_result(folder) for folder in (tmp_path / "bundle/copies/seed1", tmp_path / "alone"))
    assert (copy["status"], copy["error"]) == (alone["status"], alone["error"])


def test_a_diagnostic_that_fails_in_one_copy_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Any, model: nn.Module, probe: Any) -> None:
        raise RuntimeError("cannot look")

    monkeypatch.setattr("poslab.diagnostics.neighbour_similarity.NeighbourSimilarity.look", fail)
    folder = train(tmp_path / "run", *TINY, "seeds=2")
    assert stored_result(folder)["status"] == "completed"
    assert "cannot look" in caplog.text
