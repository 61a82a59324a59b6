"""The written comparison: tables, texts and plots, the same bytes whenever the jobs are the same."""

import json
from pathlib import Path

import pytest

from poslab.comparison import write_comparison
from support.job_folders import write_job
from support.small_sweep import FILES, rows, small_sweep, written


def test_everything_is_written_and_nothing_else(compared: Path) -> None:
    others = {path.name for path in compared.iterdir() if path.is_dir() and path.name != "comparison"}
    assert {name for name in written(compared) if name.split("/")[0] not in others} == {*FILES, "invalid.json"}


def test_a_row_a_job_with_only_the_axes_that_vary(compared: Path) -> None:
    table = rows(compared)
    assert list(table[0]) == [
        "job", "pos", "model.n_heads", "seed", "status", "error", "overrides",
        "parameters/total", "parameters/attention", "parameters/head", "parameters/position",
        "parameters/token_embedding", "best/val/loss", "best/val/accuracy", "best/val/exact_match",
        "val/loss", "val/accuracy", "val/exact_match", "train/loss", "length/9/exact_match", "length/12/exact_match",
        "neighbour_similarity/offset_1", "learning/steps_to_quarter", "learning/steps_to_0.1", "learning/area",
        "learning/source", "steps_to_99/exact_match", "steps_to_99/accuracy", "wall_seconds",
    ]  # fmt: skip
    assert [(row["pos"], row["model.n_heads"], row["seed"]) for row in table] == [
        *(("learned", "4", seed) for seed in "123"),
        ("learned", "5", "1"),
        *(("learned", "16", seed) for seed in "123"),
        *(("sinusoidal", heads, seed) for heads in ("4", "16") for seed in "123"),
    ]
    by_name = {row["job"]: row for row in table}
    good = by_name["sinusoidal-16-2"]
    result = json.loads((compared / "sinusoidal-16-2" / "result.json").read_text())
    assert float(good["train/loss"]) == result["metrics"]["train/loss"]
    assert good["parameters/total"] == "8833"
    assert good["overrides"] == "pos=sinusoidal model.n_heads=16 seed=2"
    # It learns at step 236 and validates every 20.
    assert good["steps_to_99/exact_match"] == "240"
    assert [by_name[name]["status"] for name in ("learned-16-3", "learned-4-1", "")] == [
        "diverged",
        "broken",
        "invalid",
    ]
    assert by_name["learned-16-3"]["val/loss"] == ""
    assert "loss nan </script>" in by_name["learned-16-3"]["error"]


def test_the_same_jobs_make_the_same_bytes_whatever_the_order(tmp_path: Path) -> None:
    one, two = small_sweep(tmp_path / "one"), tmp_path / "two"
    for seed in (4, 5):
        write_job(two / f"job{seed}", seed=seed, pos="sinusoidal", model__n_heads=16)
    write_comparison([one, two], tmp_path / "out1")
    write_comparison([one, two], tmp_path / "out2")
    write_comparison([two, *reversed([path for path in one.iterdir() if path.is_dir()]), one], tmp_path / "out3")
    assert set(written(tmp_path / "out1")) == FILES
    assert written(tmp_path / "out1") == written(tmp_path / "out2") == written(tmp_path / "out3")
    assert {row["sweep"] for row in rows(tmp_path / "out1")} == {"one", "two"}


def test_of_an_equal_sweep_only_the_last_column_differs(compared: Path, tmp_path: Path) -> None:
    again = small_sweep(tmp_path / "sweep", wall_seconds=9.0)
    write_comparison([again], again)
    columns = list(rows(again)[0])
    for one, two in zip(rows(compared), rows(again), strict=True):
        assert {name for name in columns if one[name] != two[name]} <= {"wall_seconds"}
    assert columns[-1] == "wall_seconds"


def test_the_text_says_it_first_then_shows_settings_and_reasons(compared: Path) -> None:
    text = (compared / "comparison.md").read_text()
    assert text.splitlines()[0] == "# Comparison of 13 jobs"
    assert text.splitlines()[2] == "- *2 of 12 jobs did not complete: 1 broken, 1 diverged.*"
    assert text.splitlines()[3].startswith(
        "- **1 of 6 jobs with learned was broken, 1 of 6 jobs with learned diverged; sinusoidal"
    )
    assert text.index("Holm") < text.index("## By setting") < text.index("## Not completed")
    # 0.001, 0.002 and 0.003: their geometric mean, and its interval by t with two degrees of freedom.
    assert "| sinusoidal | 4 | 3 | 100.0 % | 100.0 % | 0.00182 [4.6e-4, 0.0072] |" in text
    assert "| learned | 16 | 2 |" in text
    assert "1 diverged |" in text
    assert (
        "| learned-16-3 | diverged | DivergedError: loss nan \\</script>\\<b>at\\</b> step 40 \\| lower the rate |"
        in text
    )
    assert "| pos=learned model.n_heads=5 seed=1 | invalid | 32 has no 5 equal heads |" in text


def test_only_refused_combinations(tmp_path: Path) -> None:
    (tmp_path / "invalid.json").write_text(json.dumps([{"overrides": ["model.n_heads=5"], "reason": "no"}]))
    assert write_comparison([tmp_path], tmp_path).counts == {"invalid": 1}


def test_a_single_run(tmp_path: Path) -> None:
    run = write_job(tmp_path / "run")
    comparison = write_comparison([run], run)
    assert comparison.axes == []
    assert "n = 1 has no interval" in (run / "comparison.md").read_text()
    assert "only one seed" in (run / "comparison.md").read_text()
    # Written into the run's own folder, it does not become a part of the run.
    assert len(write_comparison([run], run).jobs) == 1


def test_mixed_versions_and_repeated_jobs_are_said(tmp_path: Path) -> None:
    write_job(tmp_path / "a" / "job")
    other = write_job(tmp_path / "b" / "job")
    result = json.loads((other / "result.json").read_text())
    result["versions"]["torch"] = "2.9.0"
    (other / "result.json").write_text(json.dumps(result))
    write_comparison([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    text = (tmp_path / "out" / "comparison.md").read_text()
    assert "different versions: torch 2.13.0, 2.9.0" in text
    assert "1 of the completed jobs have exactly the settings of another one" in text


def test_a_status_of_a_later_version_is_shown_as_it_is(tmp_path: Path) -> None:
    write_job(tmp_path / "job", status="pruned", error="behind the others")
    assert write_comparison([tmp_path], tmp_path).counts == {"pruned": 1}
    assert "1 pruned" in (tmp_path / "comparison.html").read_text()


def test_an_old_comparison_stays_whole_when_a_new_one_fails(compared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = written(compared)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_comparison([compared], compared)
    assert written(compared) == before


def test_every_verdict_is_data_and_its_sentence_is_the_one_in_the_text(compared: Path) -> None:
    stored = json.loads((compared / "comparison.json").read_text())
    assert (stored["margin"], stored["tune"]) == (1.25, [])
    pos, heads = stored["verdicts"]
    assert (pos["axis"], pos["first"], pos["second"]) == ("pos", "pos=sinusoidal", "pos=learned")
    assert pos["outcome"] == "speed"
    assert pos["low"] < pos["ratio"] < pos["high"] < 1 < pos["bound"]
    assert (pos["verdict"], heads["axis"]) == ("different", "model.n_heads")
    text = (compared / "comparison.md").read_text()
    assert all(each["text"].split(" (")[0] in text for each in stored["verdicts"])
