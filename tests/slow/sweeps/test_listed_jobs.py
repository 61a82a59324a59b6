"""An experiment with listed jobs, run."""

import json
from pathlib import Path

import pytest

from support.commands import start


@pytest.mark.process
def test_an_experiment_with_listed_jobs_runs_them_and_typed_values_count(tmp_path: Path) -> None:
    quick = ("trainer.max_steps=2", "data.val_examples=8", "diagnostics=none", "logger=none")
    done = start(
        "-m", "experiment=length_generalization", "pos=hard_alibi,learned", "seed=3,4", *quick, "hydra.sweep.dir=s",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = {
        path.parent.name.rpartition("-")[0]: json.loads(path.read_text()) for path in tmp_path.glob("s/*/result.json")
    }
    assert set(found) == {
        name.replace("SEED", f"seed{seed}")
        for name in ("hard_alibi-SEED-n_heads8-n_windows4", "learned-SEED", "learned-SEED-random-init_std1.0")
        for seed in (3, 4)
    }
    assert {result["status"] for result in found.values()} == {"completed"}
