"""``experiment=start_scale`` compares two schemes at equal scales, and every job of it runs."""

import shlex
from pathlib import Path

import pytest
import yaml

from poslab.runs.result import stored_result
from support.paths import CONF
from support.runs import train

JOBS = yaml.safe_load((CONF / "experiment/start_scale.yaml").read_text())["hydra"]["sweeper"]["jobs"]
SCALES = [0.02, 0.25, 0.7071]


def test_each_scale_is_there_for_both_schemes(tmp_path: Path) -> None:
    found: dict[str, list[float]] = {}
    for number, job in enumerate(JOBS):
        overrides = shlex.split(job)
        quick = ("data.steps_per_epoch=1", "trainer.max_epochs=1", "data.val_examples=8", "diagnostics=none", "seeds=2")
        result = stored_result(train(tmp_path / str(number), "experiment=start_scale", *overrides, *quick))
        assert result["status"] == "completed"
        found.setdefault(overrides[0], []).append(result["start"]["position_rms"])
    assert found["pos=sinusoidal"] == pytest.approx(SCALES, rel=1e-3)
    # Two tables of 384 random numbers each.
    assert found["pos=learned"] == pytest.approx(SCALES, rel=0.1)
    assert len(found) == 2
