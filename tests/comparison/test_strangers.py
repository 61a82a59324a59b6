"""Folders that somebody else has written: a comparison names what it cannot read, and compares the rest."""

import json
import os
from pathlib import Path

import pytest

from poslab.comparison import write_comparison
from poslab.comparison.claims import read_claims
from poslab.comparison.collect import collect
from poslab.errors import ConfigError
from support.job_folders import write_job
from support.limits import in_time
from support.strange_files import LONG, STRANGE, UNREADABLE


def good_jobs(folder: Path) -> None:
    for seed in range(3):
        for pos, steps in (("learned", 240), ("sinusoidal", 120)):
            write_job(folder / f"{pos}{seed}", seed=seed, pos=pos, steps_to_99=steps + 3 * seed, pictures=10)


def test_what_cannot_be_read_is_broken_and_named_and_the_others_are_compared(tmp_path: Path) -> None:
    good_jobs(tmp_path / "sweep")
    (tmp_path / "sweep/invalid.json").write_text(
        json.dumps([{"overrides": [f"seed={LONG}", "optimizer.lr=1e999"], "reason": "x" * 10_000}])
    )
    before = write_comparison([tmp_path / "sweep"], tmp_path / "before")
    for name, (act, _) in UNREADABLE.items():
        act(write_job(tmp_path / "sweep" / name, seed=7))
    with in_time(120):
        after = write_comparison([tmp_path / "sweep"], tmp_path / "after")
    found = {job.name: job for job in after.jobs}
    for name, (_, said) in UNREADABLE.items():
        assert found[name].status == "broken", name
        assert said in found[name].error, name
        assert len(found[name].error) < 700, name
    assert after.counts == before.counts | {"broken": len(UNREADABLE)}
    judged = [[(each.axis, each.ratio, each.p, each.verdict) for each in one.verdicts] for one in (before, after)]
    assert judged[0] == judged[1]
    assert judged[0]


def test_strange_content_ends_no_comparison(tmp_path: Path) -> None:
    good_jobs(tmp_path / "sweep")
    for seed, (name, act) in enumerate(STRANGE.items(), start=10):
        act(write_job(tmp_path / "sweep" / name, seed=seed))
    os.mkfifo(tmp_path / "sweep/invalid.json")
    with in_time(120):
        comparison = write_comparison([tmp_path / "sweep"], tmp_path / "out")
    found = {job.name: job for job in comparison.jobs}
    for name in ("pipe for a table", "zeros for a table", "a table without end"):
        assert "metrics.csv cannot be read (it is " in found[name].error, name
    assert found["invalid.json"].status == "broken"
    assert found["steps that go back"].history.curves["val/loss"] == ([0], [4.0])
    assert len(found["a very long error"].error) < 600
    for file in comparison.files:
        if file.suffix != ".png":
            file.read_bytes().decode("utf-8")


def test_names_that_are_not_utf_8_are_shown_and_links_are_followed(tmp_path: Path) -> None:
    write_job(tmp_path / "elsewhere/run", seed=1)
    sweep = tmp_path / os.fsdecode(b"sweep\xff")
    write_job(sweep / os.fsdecode(b"job\xfe"), seed=2)
    (sweep / "link").symlink_to(tmp_path / "elsewhere/run")
    comparison = write_comparison([sweep], tmp_path / "out")
    assert {(job.sweep, job.name, job.status) for job in comparison.jobs} == {
        ("sweep\\xff", "job\\xfe", "completed"),
        ("sweep\\xff", "run", "completed"),
    }
    assert "job\\xfe" in (tmp_path / "out/comparison.csv").read_text(encoding="utf-8")


def test_a_table_with_too_many_rows_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poslab.comparison.history.MOST_ROWS", 10)
    (job,) = collect([write_job(tmp_path / "job")])
    assert "metrics.csv cannot be read (it has more than 10 rows)" in job.error


@pytest.mark.parametrize("content", ["[5]", '[{"claim": "a", "source": "b", "metric": "c", "where": 5}]', LONG])
def test_claims_of_other_types_are_refused_in_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "claims.json").write_text(content)
    with pytest.raises(ConfigError, match=r"claims\.json cannot be read") as refused:
        read_claims(tmp_path)
    assert "\n" not in str(refused.value)
