"""Two valid options whose pair was never run: every pair of training options runs, or is refused in one line."""

import math
from pathlib import Path

import pytest

from poslab.errors import ConfigError
from poslab.preflight.checks import preflight
from poslab.runs.result import stored_result
from support.configs import compose
from support.option_pairs import ALONE, QUICK, QUIET, REFUSED, REST, Row, all_pairs, pairs_of
from support.runs import train


def test_the_rows_hold_every_pair_that_can_be() -> None:
    assert set().union(*map(pairs_of, [*ALONE, *REST])) >= all_pairs()
    assert len(all_pairs()) == 4 * 45 - len(REFUSED)
    assert any("trainer.precision=bf16" in row and "trainer.gradient_clip_norm=0.5" in row for row in ALONE)


@pytest.mark.parametrize("row", ALONE, ids=" ".join)
def test_a_row_of_options_trains(row: Row, tmp_path: Path) -> None:
    preflight(compose(*QUICK, *QUIET, *row), tmp_path / "run")
    train(tmp_path / "run", *QUICK, *QUIET, *row)
    result = stored_result(tmp_path / "run")
    assert result["status"] == "completed"
    assert math.isfinite(result["metrics"]["val/loss"])
    assert result["metrics"]["train/loss"] != result["metrics"]["start/train/loss"]


@pytest.mark.parametrize(("pair", "message"), REFUSED.items(), ids=lambda value: " ".join(value)[:50])
def test_a_pair_that_cannot_be_is_refused_in_one_line(pair: Row, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        preflight(compose(*QUIET, *pair), tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()
