"""The rows of the covering array that start ranks or a compiler."""

import json
import math
from pathlib import Path

import pytest

from support.commands import start
from support.option_pairs import QUICK, QUIET, REST, Row


@pytest.mark.parametrize("row", REST, ids=" ".join)
def test_a_row_of_options_trains(row: Row, tmp_path: Path) -> None:
    # `trainer=ddp` before the values that it would set.
    ended = start(
        *sorted(row, key=lambda one: "trainer=" not in one), *QUICK, *QUIET, "hydra.run.dir=run", cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads((tmp_path / "run/result.json").read_text(encoding="utf-8"))
    assert result["status"] == "completed"
    assert math.isfinite(result["metrics"]["val/loss"])
