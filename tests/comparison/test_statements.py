"""What the comparison says in words: found where there is something, and nothing claimed where there is not."""

import math
import random

from poslab.comparison.axes import varying
from poslab.comparison.statements import Plan, statements
from support.simulated import grid, job, say


def test_the_sentence_of_a_clear_effect_names_levels_factor_and_sample() -> None:
    jobs = grid(random.Random(1), effect=1.9, spread=0.02, every=2)
    sentence, *others = say(jobs)
    assert sentence.kind == "different"
    assert sentence.text.startswith(
        "sinusoidal needs 1.89x fewer steps to a quarter of the start loss than learned (95 % interval 1.87x to 1.91x"
    )
    assert "x apart; 3 seeds over 4 settings, 12 of 12 pairs agree)" in sentence.text
    assert "paired t-test on log steps to a quarter of the start loss, p < 0.001" in sentence.detail
    assert [each.kind for each in others] == ["equivalent", "equivalent"]
    assert others[0].text.startswith("d_model 64 against 32: equivalent within 1.25x in steps to a quarter of")
    assert "(at most 1.0" in others[0].text
    method = statements(jobs, varying([each.settings for each in jobs]))[2]
    assert "Holm's method over 3 comparisons" in method


def test_by_area_where_too_few_runs_learn() -> None:
    rng = random.Random(2)
    jobs = [
        job(None, base * math.exp(rng.gauss(0, 0.1)), pos=pos, seed=seed)
        for pos, base in (("rope", 0.8), ("none", 3.2))
        for seed in range(3)
    ]
    (sentence,) = say(jobs)
    assert sentence.text.startswith("rope has a 3.68x")
    assert "smaller area under the loss curve than none (95 % interval 2.23x to 6.09x" in sentence.text
    assert "99 % exact match at the end of 0 of 3 and 0 of 3 runs" in sentence.detail


def test_by_counts_where_these_differ_clearly() -> None:
    """Runs that diverged count as not learned, and are named first."""
    jobs = [job(240 + seed, pos="sinusoidal", seed=seed) for seed in range(8)]
    jobs += [job(None, 3.2, status="diverged" if seed < 5 else "completed", pos="none", seed=seed) for seed in range(8)]
    first, sentence = say(jobs)
    assert first.text == "5 of 16 jobs did not complete: 5 diverged"
    assert sentence.kind == "different"
    assert sentence.text == (
        "5 of 8 jobs with none diverged; the task is learned in 8 of 8 runs with sinusoidal and in 0 of 8 with none "
        "(only one of the two in 8 seeds)"
    )
    assert "sign test on seeds, p = 0.0078" in sentence.detail


def test_below_six_discordant_seeds_only_the_counts_are_given() -> None:
    jobs = [job(240 + seed, pos="sinusoidal", seed=seed) for seed in range(5)]
    jobs += [job(None, 3.2 + seed / 10, pos="none", seed=seed) for seed in range(5)]
    (sentence,) = say(jobs)
    assert sentence.verdict is not None
    assert sentence.verdict.outcome == "area"
    assert "99 % exact match at the end of 5 of 5 and 0 of 5 runs" in sentence.detail


def test_settings_that_no_job_learns_are_left_out_of_a_comparison_of_steps() -> None:
    rng = random.Random(3)
    jobs = [
        job(steps * 1.1**seed * math.exp(rng.gauss(0, 0.01)), every=2, pos="learned", model__n_heads=heads, seed=seed)
        for heads, steps in ((4, 400), (8, 200))
        for seed in range(4)
    ]
    jobs += [job(None, 3.2, pos="none", model__n_heads=heads, seed=seed) for heads in (4, 8) for seed in range(4)]
    (heads,) = [each for each in say(jobs) if each.text.startswith("n_heads")]
    assert heads.text.startswith("n_heads 8 needs 2.0")
    assert "4 seeds, 4 of 4 pairs agree" in heads.text
    assert (
        "in 1 setting no run learns (none)" in heads.detail or "in 1 setting no run learns (pos none)" in heads.detail
    )


def test_an_average_over_a_rate_at_which_everything_fails_says_so() -> None:
    rng = random.Random(4)
    jobs = [
        job(None, (4 if lr == 1 else base) * math.exp(rng.gauss(0, 0.02)), pos=pos, optimizer__lr=lr, seed=seed)
        for pos, base in (("a", 1.0), ("b", 2.0))
        for lr in (0.01, 1)
        for seed in range(4)
    ]
    for each in jobs:
        each.metrics["val/exact_match"] = float(each.settings["optimizer.lr"] != 1)
    (sentence,) = [each for each in say(jobs) if " against b" in each.text or " than b" in each.text]
    assert "in 1 setting no run learns (lr 1)" in sentence.detail
    # The ratio is 2 with one rate and 1 with the other, so there is no one ratio to report.
    assert "depends on the setting" in sentence.text


def test_a_difference_that_depends_on_the_setting_is_not_averaged() -> None:
    rng = random.Random(7)
    jobs = [
        job(steps * math.exp(rng.gauss(0, 0.05)), every=2, pos=pos, model__n_heads=heads, seed=seed)
        for pos, heads, steps in (("a", 4, 400), ("a", 8, 200), ("b", 4, 200), ("b", 8, 400))
        for seed in range(4)
    ]
    sentence = next(each for each in say(jobs) if each.verdict is not None and each.verdict.axis == "pos")
    assert sentence.kind == "different"
    assert "a against b depends on the setting: with n_heads 4 a needs 1.9" in sentence.text.replace("2.0", "1.9")
    assert "more steps" in sentence.text
    assert "with n_heads 8 a needs" in sentence.text
    assert "fewer steps" in sentence.text
    assert sentence.verdict is not None
    assert sentence.verdict.ratio is None
    assert [row["setting"] for row in sentence.verdict.by_setting] == ["n_heads 4", "n_heads 8"]


def test_one_seed_cannot_tell_and_says_how_many_to_run() -> None:
    jobs = grid(random.Random(0), effect=5.0, seeds=1)
    said = say(jobs)
    assert {each.kind for each in said} == {"unknown"}
    assert said[0].text.startswith("sinusoidal against learned: not known with one seed")
    assert "run 8 seeds" in said[0].detail


def test_the_number_of_seeds_is_a_range_for_a_ratio_that_was_asked_for() -> None:
    jobs = grid(random.Random(0), spread=0.2, every=2)
    said = say(jobs, Plan(target=1.2))
    assert any("a ratio of 1.20x would need " in each.detail for each in said)
    assert not any("would need" in each.detail for each in say(jobs))


def test_all_failed() -> None:
    jobs = [job(None, status="failed", pos=pos, seed=1) for pos in ("learned", "sinusoidal")]
    assert [each.text for each in say(jobs)] == [
        "2 of 2 jobs did not complete: 2 failed",
        "No job completed, so there is nothing to compare",
    ]


def test_a_level_without_a_completed_job_is_named_and_lost_jobs_are_counted() -> None:
    jobs = [
        job(240 * 1.05**seed, status="failed" if lr == 0.1 or (lr == 0.01 and seed == 3) else "completed",
            optimizer__lr=lr, seed=seed)
        for lr in (0.001, 0.01, 0.1) for seed in range(4)
    ]  # fmt: skip
    said = say(jobs)
    assert said[0].text == "5 of 12 jobs did not complete: 5 failed"
    assert said[1].text.startswith("1 of 4 jobs with lr 0.01 failed; ")
    assert said[-1].text == "lr 0.1: no job completed (4 failed)"


def test_axes_that_change_together_are_not_told_apart() -> None:
    jobs = [
        job(steps * 1.05**seed, model__d_model=width, model__n_heads=heads, seed=seed)
        for width, heads, steps in ((32, 4, 400), (64, 8, 200))
        for seed in range(3)
    ]
    said = say(jobs)
    assert [each.kind for each in said] == ["unknown", "unknown"]
    assert said[0].text == "d_model 64 against 32: no two completed jobs differ in d_model alone, so it is not known"
    assert said[0].detail == "n_heads changes with it"


def test_logged_too_rarely_to_tell() -> None:
    jobs = [
        job(steps, every=120, pos=pos, seed=seed)
        for pos, steps in (("learned", 300), ("sinusoidal", 200))
        for seed in range(3)
    ]
    (sentence,) = say(jobs)
    assert sentence.kind == "unknown"
    assert "too coarse to tell" in sentence.text


def test_a_setting_that_changes_nothing_is_said_to() -> None:
    jobs = [job(100 + 40 * seed, model__init=init, seed=seed) for init in ("normal", "hashed") for seed in range(3)]
    (sentence,) = say(jobs)
    assert sentence.kind == "equivalent"
    assert sentence.text == (
        "init hashed against normal: exactly the same steps to a quarter of the start loss "
        "(3 seeds, 0 of 0 pairs agree, 3 ties)"
    )


def test_equal_differences_in_every_seed_are_suspect_and_no_proof() -> None:
    jobs = [job(None, loss, pos=pos, seed=seed) for pos, loss in (("learned", 0.2), ("none", 0.4)) for seed in range(3)]
    (sentence,) = say(jobs)
    assert sentence.kind == "unknown"
    assert "check that the seed is used" in sentence.text


def test_numbers_are_compared_with_their_neighbours_and_names_with_the_best() -> None:
    rng = random.Random(5)
    numbers = [
        job(200 * math.exp(rng.gauss(0, 0.1)), model__n_heads=n, seed=s) for n in (16, 2, 4, 8) for s in (1, 2, 3)
    ]
    verdicts = statements(numbers, ["model.n_heads", "seed"])[1]
    assert [(each.first, each.second) for each in verdicts] == [
        (f"model.n_heads={above}", f"model.n_heads={below}") for below, above in ((2, 4), (4, 8), (8, 16))
    ]
    names = [
        job(steps * math.exp(rng.gauss(0, 0.1)), pos=pos, seed=s)
        for pos, steps in (("a", 900), ("b", 400), ("best", 90), ("c", 800))
        for s in (1, 2, 3)
    ]
    assert len(say(names)) == 3
    assert all("best" in each.text for each in say(names))
    # The best was chosen among all of them, so all pairs count.
    _, verdicts, method = statements(names, ["pos", "seed"])
    assert len(verdicts) == 6
    assert "over 6 comparisons" in method


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
    assert copy.text.startswith("on copy, sinusoidal needs 1.97x")
    assert repeat.kind == "equivalent"
    assert repeat.text.startswith("on repeat, ")
