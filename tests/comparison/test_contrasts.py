"""Contrasts: found where there is something, and nothing claimed where there is not."""

import json
import math
import random
import subprocess
import sys

import pytest

from poslab.comparison.axes import varying
from poslab.comparison.contrasts import contrasts
from poslab.comparison.levels import complete_block
from poslab.comparison.statements import Plan, statements
from support import student
from support.paths import ROOT
from support.simulated import NO_EFFECT, grid, job, say, texts


def test_where_nothing_matters_next_to_nothing_is_claimed() -> None:
    # In a process of its own: the type checks of this one would make it six times as slow.
    command = [sys.executable, "-m", "support.simulated"]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, check=True, timeout=240)
    rates = json.loads(done.stdout)
    assert len(rates) == len(NO_EFFECT) + 1
    # The level is 5 %; a share of 300 at exactly that has a standard error of 1.3 %.
    assert max(rate for pair in rates.values() for rate in pair) <= 0.07, rates
    # And something is tested at all: a test that never claims anything would pass the line above.
    assert min(rates["eight seeds"]) > 0


def test_counting_jobs_instead_of_seeds_would_claim_a_lot() -> None:
    """The same sweeps, tested the naive way: or the test above would prove nothing."""
    claims = 0
    for at in range(200):
        steps: dict[str, list[float]] = {"learned": [], "sinusoidal": []}
        for each in NO_EFFECT["jobs of a seed alike"](random.Random(at)):
            assert each.learning.quarter is not None
            steps[str(each.settings["pos"])].append(math.log(each.learning.quarter.step))
        claims += student.paired(steps["learned"], steps["sinusoidal"])[0] < 0.05
    assert claims / 200 > 0.2


@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_a_clear_effect_is_found_with_its_direction_and_its_size(missing: float) -> None:
    found = 0
    for at in range(40):
        rng = random.Random(at)
        jobs = [each for each in grid(rng, effect=1.9, spread=0.1, seeds=4) if rng.random() >= missing]
        claims = texts(jobs, "different")
        assert not [claim for claim in claims if claim.startswith("learned")]
        for contrast in contrasts(jobs, varying([each.settings for each in jobs])):
            estimate = contrast.primary.estimate
            if contrast.axis == "pos" and contrast.adjusted is not None and contrast.adjusted < 0.05:
                found += 1
                assert estimate is not None
                assert 1.6 < math.exp(abs(estimate.mean)) < 2.25
    assert found >= 36


def test_levels_are_compared_at_their_own_best_rate() -> None:
    rng = random.Random(5)
    best = {"a": 0.1, "b": 0.001}
    jobs = [
        job((200 if lr == best[pos] else 800) * math.exp(rng.gauss(0, 0.02)), pos=pos, optimizer__lr=lr, seed=seed)
        for pos in best
        for lr in (0.001, 0.1)
        for seed in range(6)
    ]
    untuned = [each.kind for each in say(jobs)]
    assert "equivalent" not in untuned
    (tuned,) = say(jobs, Plan(tune=("optimizer.lr",)))
    assert tuned.kind == "equivalent"
    assert "each at its own best value, chosen on the other half of the seeds" in tuned.detail
    assert {"0.1", "0.001"} <= set(tuned.detail.replace(";", "").split())


def test_the_best_of_many_values_that_are_alike_is_not_flattered() -> None:
    """Forty rates against one: chosen and judged on the same seeds, the forty would win by their luck."""
    ahead = []
    for at in range(30):
        rng = random.Random(at)
        jobs = [
            job(200 * math.exp(rng.gauss(0, 0.3)), pos=pos, optimizer__lr=lr, seed=seed)
            for pos, rates in (("many", range(1, 41)), ("one", (1,)))
            for lr in rates
            for seed in range(4)
        ]
        (contrast,) = contrasts(jobs, ["pos", "optimizer.lr", "seed"], ("optimizer.lr",))
        assert contrast.primary.estimate is not None
        ahead.append(contrast.primary.estimate.mean * (1 if contrast.first.value == "many" else -1))
    assert abs(sum(ahead) / 30) < 0.12, "the best of forty by its own seeds would be ahead by 0.3"


def test_variants_of_one_value_are_levels_of_their_own() -> None:
    rng = random.Random(6)

    def runs(steps: float, **settings: object) -> list:
        return [job(steps * math.exp(rng.gauss(0, 0.02)), every=2, seed=seed, **settings) for seed in range(4)]

    plain = runs(200, pos="learned", pos__init_std=0.02) + runs(198, pos="sinusoidal")
    varied = plain + runs(4000, pos="learned", pos__init_std=5)
    (before,) = say(plain)
    said = {each.text.split(":")[0].split(" needs")[0]: each for each in say(varied)}
    same = next(each for text, each in said.items() if "learned (init_std 0.02)" in text and "sinusoidal" in text)
    assert (before.kind, same.kind) == ("equivalent", "equivalent")
    assert before.verdict is not None
    assert same.verdict is not None
    assert same.verdict.ratio == before.verdict.ratio
    assert any("learned (init_std 5)" in each.text and each.kind == "different" for each in say(varied))


def test_suggestive_is_what_only_the_adjustment_takes_away() -> None:
    rng = random.Random(8)
    jobs = [
        job(200 * math.exp(rng.gauss(0, 0.1)), every=2, pos=pos, seed=seed) for pos in "abcdef" for seed in range(4)
    ]
    for each in contrasts(jobs, ["pos", "seed"]):
        assert each.p is not None
        assert each.adjusted is not None
    kinds = {
        (each.p < 0.05, each.adjusted < 0.05): statements(jobs, ["pos", "seed"])[1][at].verdict
        for at, each in enumerate(contrasts(jobs, ["pos", "seed"]))
        if each.p is not None and each.adjusted is not None
    }
    assert kinds.get((True, False), "suggestive") in ("suggestive", "equivalent")
    assert "different" not in [kind for (_, adjusted), kind in kinds.items() if not adjusted]


def test_sweeps_with_different_seeds_are_compared_without_pairs() -> None:
    rng = random.Random(4)
    jobs = [
        job(steps * math.exp(rng.gauss(0, 0.05)), every=2, pos=pos, seed=seed)
        for pos, steps, first in (("learned", 400, 0), ("sinusoidal", 200, 10))
        for seed in range(first, first + 4)
    ]
    (sentence,) = say(jobs)
    assert sentence.kind == "different"
    assert "4 seeds each, not paired" in sentence.text
    assert "Welch's t-test on log steps" in sentence.detail


def test_a_sweep_given_twice_is_no_stronger_evidence() -> None:
    jobs = grid(random.Random(1), effect=1.3, spread=0.1)
    assert say([*jobs, *jobs]) == say(jobs)


def test_where_a_job_is_missing_its_setting_goes_before_its_seed() -> None:
    cells, seeds = [("a",), ("b",), ("c",)], [1, 2, 3]
    pairs = {(cell, seed) for cell in cells for seed in seeds}
    assert complete_block(pairs) == (cells, seeds)
    assert complete_block(pairs - {(("b",), 2)}) == ([("a",), ("c",)], seeds)
    assert complete_block(pairs - {(("a",), 3), (("b",), 3)}) == (cells, [1, 2])
