"""Sweeps as a person runs them: what is refused, what fails alone, what a resume does, what is left behind."""

import csv
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from poslab.sweeps.grid import job_label, varying_keys
from support.commands import only_sweep, start
from support.paths import ROOT

QUICK = ("trainer.max_steps=10", "data.val_examples=16", "diagnostics=none")
pytestmark = pytest.mark.process


def jobs_of(sweep: Path) -> dict[str, dict]:
    return {path.parent.name: json.loads(path.read_text()) for path in sweep.glob("*/result.json")}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Two jobs that finish, two that diverge, four combinations that cannot exist."""
    cwd = tmp_path_factory.mktemp("mixed sweep's folder")
    grid = ("pos=learned,none", "model.n_heads=4,5", "optimizer.lr=0.005,1e9")
    return cwd, start("-m", *grid, *QUICK, cwd=cwd)


def test_failures_stay_visible_and_alone(mixed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    cwd, done = mixed
    jobs = jobs_of(only_sweep(cwd))
    assert done.returncode == 1
    assert sorted(result["status"] for result in jobs.values()) == ["completed", "completed", "diverged", "diverged"]
    assert all("nan" in result["error"] for result in jobs.values() if result["status"] == "diverged")
    assert "sweep done: 2 completed, 2 diverged, 4 invalid" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_impossible_combinations_are_listed_and_have_no_folder(
    mixed: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    cwd, done = mixed
    invalid = json.loads((only_sweep(cwd) / "invalid.json").read_text())
    assert len(invalid) == 4
    assert all("model.n_heads=5" in entry["overrides"] for entry in invalid)
    assert all("d_model=32 cannot be split into model.n_heads=5" in entry["reason"] for entry in invalid)
    # One reason, one line, however many combinations share it.
    assert done.stdout.count("invalid and skipped") == 1
    assert "invalid and skipped: 4 jobs: model.d_model=32 cannot be split into model.n_heads=5" in done.stdout
    assert done.stdout.index("invalid and skipped") < done.stdout.index("run    ")


def test_a_job_says_what_was_typed_for_it_and_nothing_else(
    mixed: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    cwd, done = mixed
    lines = [line.removeprefix("typed  ") for line in done.stdout.splitlines() if line.startswith("typed  ")]
    assert sorted(lines) == sorted(" ".join(job["overrides"]) for job in jobs_of(only_sweep(cwd)).values())
    assert f"pos=none model.n_heads=4 optimizer.lr=0.005 {' '.join(QUICK)}" in lines
    assert not re.search(r"resume=|hydra\.|#\d+ :|Launching", done.stdout)


def test_folders_are_short_portable_and_named_by_what_differs(
    mixed: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    names = sorted(jobs_of(only_sweep(mixed[0])))
    assert [re.sub(r"-[0-9a-f]{8}$", "", name) for name in names] == [
        "learned-n_heads4-lr0.005",
        "learned-n_heads4-lr1000000000.0",
        "none-n_heads4-lr0.005",
        "none-n_heads4-lr1000000000.0",
    ]


def test_the_comparison_has_every_job(mixed: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    sweep = only_sweep(mixed[0])
    with open(sweep / "comparison.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["job"] for row in rows} >= set(jobs_of(sweep))
    assert (sweep / "comparison.html").exists()
    assert (sweep / "comparison.md").exists()


def test_a_bigger_grid_goes_on_where_the_smaller_one_ended(
    mixed: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    """`sweep.resume=latest`: what finished is not run again, a new seed is added, nothing moves."""
    cwd, _ = mixed
    sweep = only_sweep(cwd)
    before = {name: (sweep / name / "result.json").read_bytes() for name in jobs_of(sweep)}
    grid = ("pos=learned,none", "optimizer.lr=0.005,1e9", "seed=0,7")
    done = start("-m", *grid, *QUICK, "sweep.resume=latest", cwd=cwd)
    assert "8 jobs, 4 done before" in done.stdout
    assert only_sweep(cwd) == sweep
    after = jobs_of(sweep)
    assert len(after) == 8
    assert all((sweep / name / "result.json").read_bytes() == content for name, content in before.items())


def test_on_invalid_fail_ends_before_the_first_job(tmp_path: Path) -> None:
    done = start("-m", "model.n_heads=4,5", *QUICK, "sweep.on_invalid=fail", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: 1 of 2 combinations cannot be run: model.n_heads=5")
    assert not list(tmp_path.glob("outputs/sweeps/*/*/config.yaml"))


def test_on_failure_stop_starts_no_further_job(tmp_path: Path) -> None:
    grid = ("-m", "optimizer.lr=0.005,1e9,0.01", *QUICK, "logger=none", "sweep.on_failure=stop")
    done = start(*grid, cwd=tmp_path)
    assert done.returncode == 1
    assert sorted(result["status"] for result in jobs_of(only_sweep(tmp_path)).values()) == ["completed", "diverged"]
    assert "sweep.on_failure=stop: no further jobs after lr1000000000.0-" in done.stdout
    assert "sweep done: 1 completed, 1 diverged, 1 not started" in done.stdout


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("sweep.resume=latest",), "sweep.resume=latest, but there is no sweep in outputs/sweeps"),
        (("sweep.resume=nowhere",), "sweep.resume=nowhere holds no sweep"),
        (("model.d_modle=8,16",), "unknown key 'model.d_modle'; did you mean 'model.d_model'?"),
        (("pos=lerned,none", "model.n_heads=5,7"), "did you mean 'learned'?"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, overrides: tuple[str, ...], says: str) -> None:
    done = start("-m", "seed=1,2", *overrides, cwd=tmp_path)
    assert done.returncode == 1
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_a_killed_sweep_goes_on_and_equals_an_undisturbed_one(tmp_path: Path) -> None:
    """kill -9 in the second job's training: the first is kept, the second continued, the third run."""
    grid = ("-m", "seed=1,2,3", "data.steps_per_epoch=40", "trainer.max_epochs=3", "diagnostics=none")
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in (undisturbed, killed):
        folder.mkdir()
    assert start(*grid, cwd=undisturbed).returncode == 0
    # Unbuffered: the kill has to come while the job it reads of is still going.
    command = [sys.executable, "-u", str(ROOT / "train.py"), *grid]
    starts = 0
    with subprocess.Popen(command, cwd=killed, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            starts += line.startswith("run    ")
            if starts == 2 and line.startswith("epoch  1"):
                child.send_signal(signal.SIGKILL)
                break
    assert sorted(result["status"] for result in jobs_of(only_sweep(killed)).values()) == ["completed", "interrupted"]
    done = start(*grid, "sweep.resume=latest", cwd=killed)
    assert done.returncode == 0, done.stderr
    expected, found = only_sweep(undisturbed), only_sweep(killed)
    assert jobs_of(found).keys() == jobs_of(expected).keys()
    for name in jobs_of(expected):
        assert (found / name / "metrics.csv").read_bytes() == (expected / name / "metrics.csv").read_bytes()
    tables = [list(csv.reader((sweep / "comparison.csv").read_text().splitlines())) for sweep in (expected, found)]
    assert [row[:-1] for row in tables[0]] == [row[:-1] for row in tables[1]], "all but the seconds"


def test_ctrl_c_stops_the_sweep(tmp_path: Path) -> None:
    command = [sys.executable, "-u", str(ROOT / "train.py"), "-m", "seed=1,2", "trainer.max_epochs=2000"]
    with subprocess.Popen(
        [*command, "diagnostics=none"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Under a test runner in the background the signal is ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("epoch  2"):
                child.send_signal(signal.SIGINT)
                break
        stopped = time.monotonic()
        said = child.stdout.read()
        assert child.wait(timeout=60) == 130, said
        assert time.monotonic() - stopped < 20
    jobs = jobs_of(only_sweep(tmp_path))
    assert [result["status"] for result in jobs.values()] == ["interrupted"], "the second one was never started"
    assert "1 interrupted" in said
    assert "1 not started" in said
    (checkpoint,) = only_sweep(tmp_path).glob("*/checkpoints/last.ckpt")
    assert checkpoint.stat().st_size > 0


def test_two_sweeps_started_together_do_not_meet(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "train.py"), "-m", "seed=1,2", *QUICK]
    children = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [child.wait(timeout=120) for child in children] == [0, 0]
    assert len(list((tmp_path / "outputs/sweeps").iterdir())) == 2
    assert len(list(tmp_path.glob("outputs/sweeps/*/*/result.json"))) == 4


def test_a_job_with_very_long_values_has_a_short_folder() -> None:
    overrides = [f"model.token_file={'x' * 300}", "pos=learned"]
    label = job_label(overrides, varying=set(varying_keys([overrides, ["model.token_file=y", "pos=none"]])))
    assert len(label) <= 60


def test_labels_have_portable_characters_only() -> None:
    overrides = ["+a.b=[1, 2]", "model.token_file='C:\\x=y, z'", "seed=3"]
    label = job_label(overrides, varying={override.partition("=")[0] for override in overrides})
    assert re.fullmatch(r"[A-Za-z0-9._-]+", label)
