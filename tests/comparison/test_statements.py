"""What the comparison says in words: found where there is something, and nothing claimed where there is not."""

import json
import math
import random
import subprocess
import sys

import pytest

from poslab.comparison.axes import varying
from poslab.comparison.contrasts import complete_block, contrasts
from poslab.comparison.statements import statements
from support import student
from support.paths import ROOT
from support.simulated import EXACT, NO_EFFECT, grid, job, say, texts


def test_where_nothing_matters_next_to_nothing_is_claimed() -> None:
    # In a process of its own: the type checks of this one would make it six times as slow.
    command = [sys.executable, "-m", "support.simulated"]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, check=True, timeout=240)
    rates = json.loads(done.stdout)
    assert len(rates) == len(NO_EFFECT) + 1
    # The level is 5 %; a share of 300 at exactly that has a standard error of 1.3 %.
    assert max(rates.values()) <= 0.07, rates
    # And something is tested at all: a test that never claims anything would pass the line above.
    assert rates["eight seeds"] > 0


def test_counting_jobs_instead_of_seeds_would_claim_a_lot() -> None:
    """The same sweeps, tested the naive way: or the test above would prove nothing."""
    claims = 0
    for at in range(200):
        steps: dict[str, list[float]] = {"learned": [], "sinusoidal": []}
        for each in NO_EFFECT["jobs of a seed alike"](random.Random(at)):
            steps[str(each.settings["pos"])].append(math.log(each.history.reached[EXACT].step))
        claims += student.paired(steps["learned"], steps["sinusoidal"])[0] < 0.05
    assert claims / 200 > 0.2


@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_a_clear_effect_is_found_with_its_direction_and_its_size(missing: float) -> None:
    found = 0
    for at in range(40):
        rng = random.Random(at)
        jobs = [each for each in grid(rng, effect=1.9, spread=0.1, seeds=4) if rng.random() >= missing]
        claims = texts(jobs, "difference")
        assert not [claim for claim in claims if claim.startswith("learned")]
        for contrast in contrasts(jobs, varying([each.settings for each in jobs])):
            if contrast.axis == "pos" and contrast.clear:
                found += 1
                assert contrast.test is not None
                assert 1.6 < math.exp(abs(contrast.test.difference)) < 2.25
    assert found >= 36


def test_the_sentence_of_a_clear_effect_names_levels_factor_and_test() -> None:
    jobs = grid(random.Random(1), effect=1.9, spread=0.02, every=2)
    sentence, *others = say(jobs)
    assert sentence.kind == "difference"
    assert sentence.text == "sinusoidal reaches 99 % exact match in 1.9x fewer steps than learned"
    assert "paired t-test on log steps, 3 matched seeds over 4 settings, p < 0.001" in sentence.detail
    assert "12 of 12 pairs" in sentence.detail
    assert [each.text for each in others] == [
        "d_model 64 against 32: no difference beyond seed spread",
        "n_heads 8 against 4: no difference beyond seed spread",
    ]
    method = statements(jobs, varying([each.settings for each in jobs]))[1]
    assert "Holm's method over 3 comparisons" in method


def test_by_loss_where_99_percent_was_not_reached() -> None:
    rng = random.Random(2)
    jobs = [
        job(240 if pos == "sinusoidal" else None, base * math.exp(rng.gauss(0, 0.1)), pos=pos, seed=seed)
        for pos, base in (("sinusoidal", 0.002), ("none", 3.2))
        for seed in range(3)
    ]
    (sentence,) = say(jobs)
    assert sentence.text.startswith("sinusoidal ends at a 1,")
    assert sentence.text.endswith("x lower validation loss than none")
    assert "99 % exact match reached by 3 of 3 and 0 of 3 jobs" in sentence.detail


def test_settings_that_no_job_learns_are_left_out_of_a_comparison_of_steps() -> None:
    jobs = [
        job(steps * 1.1**seed * (1.01 if seed == 3 else 1), every=2, pos="learned", model__n_heads=heads, seed=seed)
        for heads, steps in ((4, 400), (8, 200))
        for seed in range(4)
    ]
    jobs[0] = job(404, every=2, pos="learned", model__n_heads=4, seed=0)
    jobs += [job(None, 3.2, pos="none", model__n_heads=heads, seed=seed) for heads in (4, 8) for seed in range(4)]
    (heads,) = [each for each in say(jobs) if each.text.startswith("n_heads")]
    assert heads.text == "n_heads 8 reaches 99 % exact match in 2.0x fewer steps than n_heads 4"
    assert "in 1 more no job gets to 99 %" in heads.detail


def test_one_seed_cannot_tell_and_says_how_many_to_add() -> None:
    jobs = grid(random.Random(0), effect=5.0, seeds=1)
    said = say(jobs)
    assert {each.kind for each in said} == {"unknown"}
    assert said[0].text == "sinusoidal against learned: the data cannot tell with one seed; add at least 2 seeds"
    assert "steps to 99 % exact match" in said[0].detail


def test_all_failed() -> None:
    jobs = [job(None, status="failed", pos=pos, seed=1) for pos in ("learned", "sinusoidal")]
    assert [each.text for each in say(jobs)] == ["No job completed, so there is nothing to compare"]


def test_a_level_without_a_completed_job_is_named_and_lost_jobs_are_counted() -> None:
    jobs = [
        job(240 * 1.05**seed, status="diverged" if lr == 0.1 or (lr == 0.01 and seed == 3) else "completed",
            optimizer__lr=lr, seed=seed)
        for lr in (0.001, 0.01, 0.1) for seed in range(4)
    ]  # fmt: skip
    said = say(jobs)
    assert said[-1].text == "lr 0.1: no job completed (4 diverged)"
    assert "without 1 diverged with lr 0.01" in said[0].detail


def test_axes_that_change_together_are_not_told_apart() -> None:
    jobs = [
        job(steps * 1.05**seed, model__d_model=width, model__n_heads=heads, seed=seed)
        for width, heads, steps in ((32, 4, 400), (64, 8, 200))
        for seed in range(3)
    ]
    said = say(jobs)
    assert [each.kind for each in said] == ["unknown", "unknown"]
    assert (
        said[0].text == "d_model 64 against 32: no two completed jobs differ in d_model alone, so the data cannot tell"
    )
    assert said[0].detail == "n_heads changes with it"


def test_sweeps_with_different_seeds_are_compared_without_pairs() -> None:
    rng = random.Random(4)
    jobs = [
        job(steps * math.exp(rng.gauss(0, 0.05)), every=2, pos=pos, seed=seed)
        for pos, steps, first in (("learned", 400, 0), ("sinusoidal", 200, 10))
        for seed in range(first, first + 4)
    ]
    (sentence,) = say(jobs)
    assert sentence.kind == "difference"
    assert "Welch's t-test on log steps, 4 seeds" in sentence.detail


def test_validations_too_rare_to_tell() -> None:
    jobs = [
        job(steps, every=120, pos=pos, seed=seed)
        for pos, steps in (("learned", 300), ("sinusoidal", 200))
        for seed in range(3)
    ]
    (sentence,) = say(jobs)
    assert sentence.kind == "unknown"
    assert sentence.text.endswith("too coarse to tell, validated only every 120 steps")


def test_a_setting_that_changes_nothing_is_said_to() -> None:
    jobs = [job(100 + 40 * seed, model__init=init, seed=seed) for init in ("normal", "hashed") for seed in range(3)]
    assert [each.text for each in say(jobs)] == ["init hashed against normal: exactly the same results"]


def test_equal_differences_in_every_seed_are_suspect_and_no_proof() -> None:
    jobs = [job(None, loss, pos=pos, seed=seed) for pos, loss in (("learned", 0.2), ("none", 0.4)) for seed in range(3)]
    (sentence,) = say(jobs)
    assert sentence.kind == "unknown"
    assert "check that the seed is used" in sentence.text


def test_a_sweep_given_twice_is_no_stronger_evidence() -> None:
    jobs = grid(random.Random(1), effect=1.3, spread=0.1)
    assert say([*jobs, *jobs]) == say(jobs)


def test_numbers_are_compared_with_their_neighbours_and_names_with_the_best() -> None:
    rng = random.Random(5)
    numbers = [
        job(200 * math.exp(rng.gauss(0, 0.1)), model__n_heads=n, seed=s) for n in (16, 2, 4, 8) for s in (1, 2, 3)
    ]
    assert [each.text.partition(":")[0] for each in say(numbers)] == [
        "n_heads 4 against 2",
        "n_heads 8 against 4",
        "n_heads 16 against 8",
    ]
    names = [
        job(steps * math.exp(rng.gauss(0, 0.1)), pos=pos, seed=s)
        for pos, steps in (("a", 900), ("b", 400), ("best", 90), ("c", 800))
        for s in (1, 2, 3)
    ]
    assert len(say(names)) == 3
    assert all("best" in each.text for each in say(names))
    # The best was chosen among all of them, so all pairs count.
    assert "over 6 comparisons" in statements(names, ["pos", "seed"])[1]


def test_each_task_is_a_question_of_its_own() -> None:
    rng = random.Random(6)
    jobs = [
        job(steps * math.exp(rng.gauss(0, 0.03)), every=2, task=task, pos=pos, seed=seed)
        for task, pos, steps in (
            ("copy", "learned", 400), ("copy", "sinusoidal", 200),
            ("repeat", "learned", 100), ("repeat", "sinusoidal", 100),
        )
        for seed in range(4)
    ]  # fmt: skip
    copy, repeat = say(jobs)
    assert copy.text.startswith("on copy, sinusoidal reaches 99 % exact match in 2.0x fewer steps")
    assert repeat.kind == "none"
    assert repeat.text.startswith("on repeat, ")


def test_where_a_job_is_missing_its_setting_goes_before_its_seed() -> None:
    cells, seeds = [("a",), ("b",), ("c",)], [1, 2, 3]
    pairs = {(cell, seed) for cell in cells for seed in seeds}
    assert complete_block(pairs) == (cells, seeds)
    assert complete_block(pairs - {(("b",), 2)}) == ([("a",), ("c",)], seeds)
    assert complete_block(pairs - {(("a",), 3), (("b",), 3)}) == (cells, [1, 2])
