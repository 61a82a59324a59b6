"""What is compared with what: which pairs count, which curves are alike, and what is left unsaid otherwise."""

import math
import random
from dataclasses import replace

import pytest

from poslab.comparison.collect import Job
from poslab.comparison.contrasts import contrasts
from poslab.comparison.statements import Plan, statements
from poslab.comparison.verdicts import kind_of
from poslab.runs.learning import Crossing, Learning
from support.simulated import job, say


def runs(steps: float, seeds: range, rng: random.Random, **settings: object) -> list[Job]:
    return [job(steps * math.exp(rng.gauss(0, 0.05)), every=2, seed=seed, **settings) for seed in seeds]


def test_an_unreadable_job_does_not_mix_the_tasks() -> None:
    rng = random.Random(0)
    jobs = [
        each for task in ("copy", "reverse") for pos in "ab" for each in runs(200, range(4), rng, task=task, pos=pos)
    ]
    broken = Job(sweep="sweep", name="broken", folder=None, status="broken")
    found = contrasts([*jobs, broken], ["task", "pos", "seed"])
    assert [each.task for each in found] == ["copy", "reverse"]


def test_pairs_that_never_meet_are_judged_by_area() -> None:
    """Each level gets there with other seeds: the survivors are no sample of either."""
    rng = random.Random(1)
    jobs = [
        job(200.0 if (seed < 4) == (pos == "a") else None, 2 + rng.random(), every=2, pos=pos, seed=seed)
        for pos in "ab"
        for seed in range(8)
    ]
    (contrast,) = contrasts(jobs, ["pos", "seed"])
    assert contrast.outcome == "area"
    assert contrast.seeds == 8


def test_curves_are_read_alike_on_both_sides() -> None:
    rng = random.Random(2)
    plain, dropout = runs(200, range(4), rng, pos="a"), runs(200, range(4), rng, pos="b")
    seen = Learning(quarter=Crossing(230, 120, 240), area=200, source="validation", steps=360)
    jobs = [replace(each, validated=seen) for each in plain]
    jobs += [replace(each, learning=seen, validated=seen) for each in dropout]
    (contrast,) = contrasts(jobs, ["pos", "seed"])
    assert contrast.primary.ties == 4, "from the training loss, the first level would be ahead by 1.15x"
    assert contrast.primary.spacing == pytest.approx(2)


def test_the_stream_is_never_too_coarse() -> None:
    quick = [
        replace(each, learning=replace(each.learning, quarter=Crossing(steps + 0.1 * at, 15, 25)))
        for pos, steps in (("a", 18.0), ("b", 18.3))
        for at, each in enumerate(runs(20, range(5), random.Random(3), pos=pos))
    ]
    (contrast,) = contrasts(quick, ["pos", "seed"])
    assert kind_of(contrast) in ("equivalent", "different")


def test_a_tuning_axis_does_not_split_levels() -> None:
    rng = random.Random(4)
    jobs = [each for std in (0.02, 0.25) for each in runs(200, range(4), rng, pos="learned", pos__init_std=std)]
    jobs += runs(200, range(4), rng, pos="sinusoidal")
    (contrast,) = contrasts(jobs, ["pos", "pos.init_std", "seed"], ("pos.init_std",))
    assert not contrast.first.options
    assert not contrast.second.options


def test_an_invalid_job_does_not_change_what_is_matched() -> None:
    rng = random.Random(5)
    jobs = [each for pos in "ab" for n in (32, 64) for each in runs(n, range(4), rng, pos=pos, model__d_model=n)]
    refused = Job(sweep="sweep", name="", folder=None, status="invalid", settings={"pos": "a", "seed": 0})
    found = [each for each in contrasts([*jobs, refused], ["pos", "model.d_model", "seed"]) if each.axis == "pos"]
    assert [each.settings for each in found] == [2]


def test_a_setting_with_one_seed_counts_neither_in_the_test_nor_in_what_is_said() -> None:
    rng = random.Random(6)
    jobs = [each for pos in "ab" for each in runs(200, range(8), rng, pos=pos, model__n_heads=4)]
    jobs += [each for pos in "ab" for each in runs(200, range(1), rng, pos=pos, model__n_heads=8)]
    (contrast,) = [each for each in contrasts(jobs, ["pos", "model.n_heads", "seed"]) if each.axis == "pos"]
    assert (contrast.settings, sum(contrast.primary.agree[1:]) + contrast.primary.ties) == (1, 8)


def test_a_setting_with_few_seeds_does_not_borrow_the_degrees_of_freedom_of_another() -> None:
    """No effect; eight seeds of one setting, three of another."""
    claims = 0
    for at in range(300):
        rng = random.Random(at)
        jobs = [each for pos in "ab" for each in runs(200, range(8), rng, pos=pos, model__n_heads=4)]
        jobs += [each for pos in "ab" for each in runs(200, range(3), rng, pos=pos, model__n_heads=8)]
        (contrast,) = [each for each in contrasts(jobs, ["pos", "model.n_heads", "seed"]) if each.axis == "pos"]
        assert contrast.p is not None
        claims += contrast.p < 0.05
    assert claims / 300 < 0.09


def test_levels_that_all_diverged_and_one_seed_to_tune_are_said() -> None:
    lost = [job(None, status="diverged", optimizer__lr=lr, seed=seed) for lr in (5, 10) for seed in range(3)]
    assert "no run of the two completed" in say(lost)[1].text
    rng = random.Random(7)
    jobs = [each for pos in "ab" for lr in (1, 2) for each in runs(200, range(1), rng, pos=pos, optimizer__lr=lr)]
    (tuned,) = say(jobs, Plan(tune=("optimizer.lr",)))
    assert "too few runs of the same seeds" in tuned.text


def test_where_settings_differ_there_is_no_bound_of_their_average() -> None:
    rng = random.Random(8)
    jobs = [
        each
        for pos, heads, steps in (("a", 4, 400), ("a", 8, 200), ("b", 4, 200), ("b", 8, 400))
        for each in runs(steps, range(4), rng, pos=pos, model__n_heads=heads)
    ]
    verdict = next(each for each in statements(jobs, ["pos", "model.n_heads", "seed"])[1] if each.axis == "pos")
    assert (verdict.ratio, verdict.bound) == (None, None)
    assert all(row["bound"] > 1.5 for row in verdict.by_setting)


def test_settings_that_differ_by_less_than_the_margin_are_equivalent() -> None:
    rng = random.Random(9)
    jobs = [
        job(steps * (1 + 0.001 * rng.random()), every=2, pos=pos, model__n_heads=heads, seed=seed)
        for pos, heads, steps in (("a", 4, 200), ("a", 8, 200), ("b", 4, 201), ("b", 8, 199))
        for seed in range(4)
    ]
    sentence = next(each for each in say(jobs) if each.verdict is not None and each.verdict.axis == "pos")
    assert sentence.kind == "equivalent"
