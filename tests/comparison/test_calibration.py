"""How often the comparison is right, on few simulated sweeps; `make calibrate` measures it on many."""

import json
import random
import subprocess
import sys

import pytest

from poslab.comparison.calibration import LINES, NONE, Truth, document, simulate, verdict_on

SWEEPS = 40
"""A share of 40 sweeps at 5 % has a standard error of 3.4 %."""
MEASURE = (
    f"import json; from poslab.comparison.calibration import measure; print(json.dumps(measure({SWEEPS}, seeds=[8])))"
)


@pytest.fixture(scope="module")
def rates() -> dict[str, dict[int, float]]:
    # In a process of its own: the type checks of this one would make it six times as slow.
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True, timeout=240)
    return {name: {int(n): share for n, share in row.items()} for name, row in json.loads(done.stdout).items()}


def test_next_to_nothing_is_claimed_where_nothing_differs(rates: dict[str, dict[int, float]]) -> None:
    assert rates["claims where there is no effect"][8] <= 0.15
    assert rates["claims where half of the runs learn, no effect"][8] <= 0.15
    assert rates['"within 1.25x" at truth 1.25'][8] <= 0.15


def test_effects_are_found_with_their_direction(rates: dict[str, dict[int, float]]) -> None:
    assert rates["right claim, 1.3x"][8] >= 0.95
    assert rates["right claim, 1.13x"][8] >= 0.75
    assert rates["interaction 2x against 1/2x named"][8] >= 0.95
    assert rates['"within 1.25x" at truth 1.0'][8] >= 0.9
    assert rates["interval covers the truth, 1.13x"][8] >= 0.85


def test_a_simulated_sweep_is_the_same_every_time() -> None:
    one, two = (verdict_on(Truth(1.5), 3, random.Random(1)) for _ in range(2))
    assert one == two
    assert one.outcome == "speed"
    assert {one.first, one.second} == {"pos=one", "pos=two"}


def test_the_document_says_what_was_reached_and_what_was_wanted() -> None:
    rows = {name: {3: 0.5, 8: 1.0} for name, *_ in LINES}
    text = document(400, 0, rows)
    assert "| right claim, 1.3x | 50.0 % ± 2.5 (>= 70 %) | 100.0 % ± 0.1 (>= 99 %) |" in text
    assert "400 simulated sweeps" in text


def test_a_simulated_run_is_a_run_folder(tmp_path) -> None:
    simulate(tmp_path, NONE, 2, random.Random(0))
    assert len([*tmp_path.iterdir()]) == 4
    assert all(
        (run / name).exists() for run in tmp_path.iterdir() for name in ("config.yaml", "metrics.csv", "result.json")
    )
