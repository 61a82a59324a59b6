"""Sweeps without training, which the other tests of the comparison use too, and that such folders are read right."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from poslab.comparison import ComparisonError, write_comparison
from poslab.comparison.axes import flat_settings, is_setting, varying
from poslab.comparison.collect import Job, collect, in_order
from poslab.comparison.history import read_history, thinned
from support.job_folders import config, png, write_job


def by_name(jobs: list[Job]) -> dict[str, Job]:
    return {job.name: job for job in jobs}


def test_a_class_is_named_as_on_the_command_line_and_what_is_only_shown_is_no_setting() -> None:
    settings = flat_settings(config(pos="sinusoidal"))
    assert settings["pos"] == "sinusoidal"
    assert settings["task"] == "copy"
    assert settings["task.length"] == 6
    assert settings["optimizer.betas"] == "[0.9, 0.999]"
    assert settings["model.token_file"] == "null"
    assert not [key for key in settings if key.startswith(("diagnostics", "logger", "defaults"))]


def test_only_what_varies_is_an_axis_and_an_option_of_one_scheme_is_none() -> None:
    jobs = [
        flat_settings(config(pos="learned", seed=1, model__n_heads=4)),
        flat_settings(config(pos="learned", seed=2, model__n_heads=8)),
        flat_settings(config(pos="sinusoidal", pos__base=10000.0, seed=1)),
    ]
    assert varying(jobs) == ["pos", "model.n_heads", "seed"]
    jobs.append(flat_settings(config(pos="sinusoidal", pos__base=500.0, seed=1)))
    assert varying(jobs) == ["pos", "pos.base", "model.n_heads", "seed"]


def test_true_and_one_are_two_levels() -> None:
    assert varying([flat_settings(config(model__tie_embeddings=value)) for value in (True, 1)]) == [
        "model.tie_embeddings"
    ]


def test_sweep_folders_and_run_folders_together_each_job_once(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_job(tmp_path / "sweep" / f"job{seed}", seed=seed)
    single = write_job(tmp_path / "elsewhere" / "single", seed=3)
    write_job(tmp_path / "sweep" / "superseded" / "old", seed=9)
    write_job(tmp_path / "sweep" / ".hidden", seed=9)
    (tmp_path / "emptied" / "superseded").mkdir(parents=True)
    write_job(tmp_path / "emptied" / "job3", seed=3)
    (tmp_path / "sweep" / "comparison").mkdir()
    (tmp_path / "sweep" / "comparison" / "loss_curves.png").write_bytes(png())
    (tmp_path / "sweep" / "multirun.yaml").write_text("x: 1")
    folders = [tmp_path / "sweep", single, tmp_path / "sweep" / "job1", tmp_path / "sweep", tmp_path / "emptied"]
    assert sorted(job.name for job in collect(folders)) == ["job1", "job2", "job3", "single"]


def test_the_order_of_jobs_is_that_of_their_numbers_whatever_the_order_of_folders(tmp_path: Path) -> None:
    for heads in (16, 2, 4, 8):
        write_job(tmp_path / "a" / f"job{heads}", model__n_heads=heads)
        write_job(tmp_path / "b" / f"job{heads}", model__n_heads=heads, seed=2)
    names = []
    for folders in ([tmp_path / "a", tmp_path / "b"], [tmp_path / "b", tmp_path / "a"]):
        jobs = in_order(collect(folders), ["model.n_heads", "seed"])
        names.append([(job.sweep, job.name) for job in jobs])
    assert names[0] == names[1]
    assert [name for _, name in names[0]] == ["job2"] * 2 + ["job4"] * 2 + ["job8"] * 2 + ["job16"] * 2


def test_sweeps_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    for parent in ("monday", "tuesday"):
        write_job(tmp_path / parent / "heads" / "job")
    jobs = collect([tmp_path / "monday" / "heads", tmp_path / "tuesday" / "heads"])
    assert sorted(job.sweep for job in jobs) == ["monday/heads", "tuesday/heads"]


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "an empty folder": (empty, "no config.yaml"),
    "no result": (lambda folder: (folder / "result.json").unlink(), "no result.json"),
    "half a result": (lambda folder: (folder / "result.json").write_text('{"status": "comp'), "result.json cannot be"),
    "a list for a result": (lambda folder: (folder / "result.json").write_text("[1, 2]"), "result.json is not a"),
    "an unknown status": (lambda folder: (folder / "result.json").write_text('{"status": ["x"]}'), "no known status"),
    "bytes for a result": (lambda folder: (folder / "result.json").write_bytes(b"\xff\xfe\x00"), "result.json cannot"),
    "deep nesting": (lambda folder: (folder / "result.json").write_text("[" * 100_000), "result.json cannot be read"),
    "a folder for a result": (
        lambda folder: ((folder / "result.json").unlink(), (folder / "result.json").mkdir()),
        "result.json cannot be read",
    ),
    "no configuration": (lambda folder: (folder / "config.yaml").unlink(), "no config.yaml"),
    "half a configuration": (lambda folder: (folder / "config.yaml").write_text("pos: {_target_: "), "config.yaml can"),
    "a text for a configuration": (lambda folder: (folder / "config.yaml").write_text("abc"), "config.yaml is not a"),
    "an empty configuration": (lambda folder: (folder / "config.yaml").write_text(""), "config.yaml has no content"),
}


def test_broken_folders_are_listed_with_their_reasons_beside_the_others(tmp_path: Path) -> None:
    write_job(tmp_path / "sweep" / "good")
    for seed, (name, (break_it, _)) in enumerate(DAMAGE.items(), 2):
        break_it(write_job(tmp_path / "sweep" / name, seed=seed))
    comparison = write_comparison([tmp_path / "sweep"], tmp_path / "out")
    assert comparison.counts == {"broken": len(DAMAGE), "completed": 1}
    text = (tmp_path / "out" / "comparison.md").read_text()
    jobs = by_name(comparison.jobs)
    for name, (_, reason) in DAMAGE.items():
        assert reason in jobs[name].error, name
        assert f"| {name} | broken | " in text


def test_damaged_numbers_do_not_break_a_job(tmp_path: Path) -> None:
    folder = write_job(tmp_path / "sweep" / "job", metrics={"val/loss": math.nan, "length/20/accuracy": math.inf})
    with open(folder / "metrics.csv", "a") as file:
        file.write("900,\n,,,\nx,y,z\n1000,0.1,nan,1,")
    (job,) = collect([folder])
    assert job.completed
    assert "val/loss" not in job.metrics
    assert not [name for name in job.metrics if name.startswith("length")]
    assert job.history.curves["train/loss"][0][-1] == 1000


@pytest.mark.parametrize("content", [b"", b"\x00\x01\xff", b"a,b\n1,2\n"])
def test_a_table_without_steps_is_said_and_the_job_still_counts(tmp_path: Path, content: bytes) -> None:
    folder = write_job(tmp_path / "sweep" / "job")
    (folder / "metrics.csv").write_bytes(content)
    (job,) = collect([folder])
    assert job.completed
    assert "metrics.csv cannot be read" in job.error


def test_refused_combinations_are_listed_with_their_reason(tmp_path: Path) -> None:
    write_job(tmp_path / "sweep" / "job", model__n_heads=4)
    refused = [{"overrides": ["model.n_heads=5", "optimizer.lr=1e-3", "sweep.resume=latest"], "reason": "no\n 5 heads"}]
    (tmp_path / "sweep" / "invalid.json").write_text(json.dumps(refused))
    jobs = collect([tmp_path / "sweep"])
    (job,) = [job for job in jobs if job.status == "invalid"]
    assert job.error == "no 5 heads"
    assert job.overrides == ["model.n_heads=5", "optimizer.lr=1e-3"]
    assert job.settings["optimizer.lr"] == 0.001
    assert varying([job.settings for job in jobs]) == ["model.n_heads", "optimizer.lr"]


@pytest.mark.parametrize("content", ["[{", "{}1", "[1]", '[{"overrides": ["a=1"]}]', '{"reason": 1}'])
def test_a_broken_list_of_refused_combinations_is_said(tmp_path: Path, content: str) -> None:
    write_job(tmp_path / "sweep" / "job")
    (tmp_path / "sweep" / "invalid.json").write_text(content)
    jobs = by_name(collect([tmp_path / "sweep"]))
    assert jobs["invalid.json"].status == "broken"
    assert jobs["job"].completed


def test_nothing_to_compare_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "readme.txt").write_text("nothing")
    for folder, words in ((tmp_path / "missing", "is not a folder"), (tmp_path / "notes", "no runs in")):
        with pytest.raises(ComparisonError, match=words) as error:
            collect([folder])
        assert "\n" not in str(error.value)


def test_good_enough_is_the_first_validation_at_99_percent(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,val/exact_match,val/accuracy\n0,0,0\n60,0.989,0.99\n90,,\n120,0.99,1\n180,0.5,1\n240,1,1\n")
    reached = read_history(path, {})[0].reached
    assert reached["val/exact_match"] == (120, 60)
    assert reached["val/accuracy"] == (60, 0)


def test_a_long_curve_keeps_its_ends() -> None:
    steps, values = thinned(list(range(1001)), [float(step) for step in range(1001)], 50)
    assert len(steps) == 50
    assert (steps[0], steps[-1]) == (0, 1000)
    assert values == [float(step) for step in steps]


def test_how_fast_a_job_goes_is_no_axis():
    jobs = [
        flat_settings(config(trainer={"threads": threads}, data={"num_workers": workers}))
        for threads, workers in (("1", 0), ("2", 2))
    ]
    assert varying(jobs) == []
    assert not is_setting("trainer.threads=2")
    assert is_setting("trainer.max_epochs=2")


def test_a_job_that_is_older_than_a_setting_has_the_value_of_then(tmp_path: Path) -> None:
    older = write_job(tmp_path / "older", seed=1, pos="sinusoidal")
    write_job(tmp_path / "newer", seed=2, pos="sinusoidal", pos__scale=1.0, optimizer__weight_decay_on="all")
    write_job(tmp_path / "learned", seed=3, pos="learned", optimizer__weight_decay_on="matrices")
    found = {job.name: job.settings for job in collect([tmp_path])}
    assert found["older"] | {"seed": 2} == found["newer"]
    assert "pos.scale" not in found["learned"]
    assert collect([older])[0].settings.get("pos.scale") is None, "nothing to agree with"
