"""The comparison past the training length: columns, plot, and what is said of it."""

import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

from poslab.comparison import write_comparison
from poslab.comparison.collect import Job
from poslab.comparison.past import past_training
from poslab.comparison.settings import by_setting
from poslab.comparison.statements import Statement, statements
from support import student
from support.job_folders import write_job
from support.pages import Page

WHY = "LearnedPositionalEmbedding ends at position 52 and cannot place 82 tokens; build it with <more>"
ASKED = (20, 25, 40)


def job(pos: str, seed: int, exact: dict[int, float], unreached: tuple[int, ...] = (), **settings: Any) -> Job:
    """A completed job that was trained up to length 20."""
    levels = {"pos": pos, "seed": seed, **{key.replace("__", "."): value for key, value in settings.items()}}
    return Job(
        sweep="sweep",
        name=str(levels),
        folder=None,
        status="completed",
        settings=levels,
        seed=seed,
        metrics={"val/loss": 0.1, **{f"length/{length}/exact_match": share for length, share in exact.items()}},
        out_of_reach={f"length/{length}": WHY for length in unreached},
        trained_to=20,
    )


def said(jobs: list[Job], *axes: str) -> list[Statement]:
    names = [*(axes or ("pos",)), "seed"]
    past = past_training(jobs, names)
    return [*statements(past.jobs, names)[0], *past.unreached]


ALIBI = [job("alibi", seed, {20: 0.99, 25: 0.9 + 0.02 * seed, 40: 0.7 - 0.03 * seed}) for seed in (0, 1, 2)]
ROPE = [job("rope", seed, {20: 0.98, 25: 0.4 - 0.05 * seed, 40: 0.0}) for seed in (0, 1, 2)]


def test_a_clear_difference_is_stated_with_its_test() -> None:
    (found,) = said([*ALIBI, *ROPE])
    means = [[(one.by_length[25] + one.by_length[40]) / 2 for one in side] for side in (ALIBI, ROPE)]
    p, (low, high) = student.paired(*means)
    gap = sum(means[0]) / 3 - sum(means[1]) / 3
    assert found.kind == "different"
    assert found.text.startswith(
        f"alibi gets {100 * gap:.1f} percentage points more exact match past the training length than rope "
        f"(95 % interval {100 * low:.1f} to {100 * high:.1f}, at most "
    )
    assert found.text.endswith(" points apart; 3 seeds, 3 of 3 pairs agree)")
    assert (
        "means 79.5 % (alibi) and 17.5 % (rope); paired t-test on exact match past the training length" in found.detail
    )
    assert ("p < 0.001" if p < 0.001 else f"p = {p:.2g}") in found.detail
    assert found.verdict is not None
    assert (found.verdict.outcome, found.verdict.ratio) == ("past", pytest.approx(gap))
    assert "lengths 25, 40" in past_training([*ALIBI, *ROPE], ["pos", "seed"]).method


def test_the_better_level_is_named_first_whatever_the_order_of_the_jobs() -> None:
    renamed = [job("zebra", one.seed, one.by_length) for one in ALIBI]
    assert said([*ROPE, *renamed])[0].text.startswith("zebra gets 62.0 percentage points more")


def test_what_seeds_do_not_agree_on_is_not_known() -> None:
    noisy = [
        job("t5", one.seed, {20: 1, 25: share, 40: 0.6}) for one, share in zip(ALIBI, (0.99, 0.8, 0.97), strict=True)
    ]
    (found,) = said([*ALIBI, *noisy])
    assert found.kind == "unknown"
    assert ": not known in exact match past the training length (at most " in found.text
    same = [job("none", one.seed, one.by_length) for one in ROPE]
    assert "exactly the same exact match past the training length" in said([*same, *ROPE])[0].text


def test_chance_is_rarely_taken_for_a_difference() -> None:
    """Five schemes that are alike: the best of them is picked, and has to survive the choice."""
    rng, wrong = random.Random(5), 0
    for _ in range(120):
        jobs = [
            job(pos, seed, {25: min(1.0, max(0.0, rng.gauss(0.6, 0.1))), 40: min(1.0, max(0.0, rng.gauss(0.3, 0.1)))})
            for pos in "abcde"
            for seed in range(4)
        ]
        wrong += any(each.kind == "different" for each in said(jobs))
    assert wrong <= 0.09 * 120, "5 % of sweeps, and chance"


def test_one_seed_claims_nothing() -> None:
    jobs = [job(pos, 0, {20: 1, 25: share, 40: 0.0}) for pos, share in (("a", 0.2), ("b", 0.8), ("c", 0.4))]
    assert {each.kind for each in said(jobs)} == {"unknown"}


def test_a_scheme_that_ends_is_told_apart_and_not_counted_as_zero() -> None:
    ends = [job("learned", seed, {20: 1.0, 25: 0.5}, unreached=(40,)) for seed in (0, 1, 2)]
    found = said([*ALIBI, *ROPE, *ends])
    assert found[-1].text == "learned: length 40 out of reach, so it is not compared past the training length"
    assert found[-1].detail == WHY
    past = [each.verdict for each in found if each.verdict is not None and each.verdict.outcome == "past"]
    assert len(past) == 1
    assert not any("learned" in each.first + each.second for each in past)


def test_only_lengths_that_all_were_asked_for_and_none_trained_on_count() -> None:
    fewer = [job("rope", seed, {20: 0.9, 25: 0.4 - 0.05 * seed, 30: 0.1}) for seed in (0, 1, 2)]
    assert past_training([*ALIBI, *fewer], ["pos", "seed"]).lengths == [25]
    longer = [job("rope", seed, {25: 0.4, 40: 0.1 * seed}) for seed in (0, 1, 2)]
    for one in longer:
        one.trained_to = 30
    past = past_training([*ALIBI, *longer], ["pos", "seed"])
    assert past.lengths == [40]
    assert "trained to 30" in past.method


@pytest.mark.parametrize("lengths", [{}, {10: 0.5, 20: 0.9}])
def test_nothing_is_said_where_nothing_past_training_was_asked(lengths: dict[int, float]) -> None:
    jobs = [job(pos, seed, lengths) for pos in "ab" for seed in (0, 1, 2)]
    past = past_training(jobs, ["pos", "seed"])
    assert (past.lengths, past.unreached, past.method) == ([], [], "")
    assert past.jobs == jobs


def test_a_setting_has_the_mean_and_interval_of_its_seeds_at_each_length() -> None:
    ends = [job("learned", seed, {20: 1.0}, unreached=(25, 40)) for seed in (0, 1)]
    alibi, learned = by_setting([*ALIBI, *ends], ["pos", "seed"])
    values = [one.by_length[40] for one in ALIBI]
    _, interval = student.one_sample(values)
    assert alibi.by_length[40].mean == pytest.approx(sum(values) / 3)
    assert (alibi.by_length[40].low, alibi.by_length[40].high) == pytest.approx(interval)
    assert (list(learned.by_length), learned.out_of_reach) == ([20], {25: WHY, 40: WHY})


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two schemes, two seeds, asked for 20, 25 and 40, of which the learned table reaches the first alone."""
    folder = tmp_path_factory.mktemp("sweep")
    for pos in ("alibi", "learned"):
        for seed in (1, 2):
            reached = ASKED if pos == "alibi" else ASKED[:1]
            scores = {f"length/{n}/{name}": 1 / n + 0.1 * seed for n in reached for name in ("accuracy", "exact_match")}
            path = write_job(folder / f"{pos}{seed}", pos=pos, seed=seed, metrics=scores) / "result.json"
            found = json.loads(path.read_text())
            found["out_of_reach"] = {f"length/{n}": WHY for n in ASKED if n not in reached}
            found["batches_by_length"] = {"2": 100, "20": 98}
            path.write_text(json.dumps(found))
    write_comparison([folder], folder)
    return folder


def test_the_table_has_a_column_for_each_length_and_numbers_only(sweep: Path) -> None:
    table = list(csv.DictReader(io.StringIO((sweep / "comparison.csv").read_text())))
    scores = [f"length/{n}/{name}" for name in ("exact_match", "accuracy") for n in ASKED]
    assert [name for name in table[0] if name.startswith("length/")] == scores
    by_job = {row["job"]: row for row in table}
    assert float(by_job["alibi2"]["length/40/exact_match"]) == 1 / 40 + 0.2
    assert by_job["learned1"]["length/40/exact_match"] == ""
    assert by_job["learned1"]["out_of_reach"] == f"length/25: {WHY}; length/40: {WHY}"
    assert by_job["alibi1"]["out_of_reach"] == ""


def test_the_text_has_them_by_setting_with_the_reason_and_the_plot(sweep: Path) -> None:
    text = (sweep / "comparison.md").read_text()
    section = text[text.index("## By length") :]
    assert "| pos | 20 | 25 | 40 |" in section
    assert "| learned | 20.0 % [0.0, 83.5] | out of reach | out of reach |" in section
    assert f"Out of reach: learned at 40, {WHY.replace('<', chr(92) + '<')}." in section
    assert "![Exact match by length](comparison/exact_match_by_length.png)" in section
    assert (sweep / "comparison/exact_match_by_length.png").read_bytes().startswith(b"\x89PNG")
    assert "- *learned: lengths 25, 40 out of reach" in text


def test_the_page_says_out_of_reach_with_the_reason_in_the_cell_s_title(sweep: Path) -> None:
    page = Page((sweep / "comparison.html").read_text())
    titles = [attributes["title"] for tag, attributes in page.tags if tag == "td" and "title" in attributes]
    # By setting two cells; in the table of jobs two jobs, two lengths, two scores.
    assert titles == [WHY] * (2 + 8)
    assert page.text.count("out of reach") == 2 + 8 + 1, "and the heading of the column with the reasons"
    (picture,) = [attributes for tag, attributes in page.tags if tag == "img"]
    assert picture["alt"] == "exact match by length"
    data = json.loads(page.data)
    assert "length/exact_match" in data["jobs"][0]["curves"]
