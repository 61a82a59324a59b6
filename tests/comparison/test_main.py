"""``python -m poslab.comparison``: what it writes, its errors, its time and memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from poslab.comparison import ComparisonError, write_comparison
from poslab.comparison.__main__ import main
from support.job_folders import write_job
from support.small_sweep import FILES, rows, written


def test_the_command_line(compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(compared), "--output", str(tmp_path / "out")])
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "13 jobs: 1 broken, 10 completed, 1 diverged, 1 invalid"
    assert said[1] == "- 2 of 12 jobs did not complete: 1 broken, 1 diverged"
    assert "; sinusoidal needs " in said[2]
    assert said[-1] == f"see it: {tmp_path / 'out' / 'comparison.html'}"
    assert set(written(tmp_path / "out")) == FILES
    main([str(compared)])
    assert capsys.readouterr().out.endswith(f"see it: {compared / 'comparison.html'}\n")


def test_errors_on_the_command_line_are_one_line(compared: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for arguments, words in (
        ([tmp_path / "missing"], "is not a folder"),
        ([tmp_path / "empty"], "no runs in"),
        ([compared, "--output", tmp_path / "file"], "cannot write to"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        message = str(stopped.value.code)
        assert message.startswith("error: ")
        assert words in message
        assert "\n" not in message
    with pytest.raises(ComparisonError):
        write_comparison([tmp_path / "empty"], tmp_path)


def test_margin_tuning_and_target_are_flags(compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--output", str(tmp_path)]
    main([str(compared), *out, "--margin", "1.5", "--target", "1.2"])
    assert json.loads((tmp_path / "comparison.json").read_text())["margin"] == 1.5
    assert "a ratio of 1.20x would need" in (tmp_path / "comparison.md").read_text()
    main([str(compared), *out, "--tune", "model.n_heads"])
    assert {each["axis"] for each in json.loads((tmp_path / "comparison.json").read_text())["verdicts"]} == {"pos"}
    capsys.readouterr()
    for flags, words in (
        (["--margin", "0.9"], "comparison.margin=0.9 must be a finite factor above 1"),
        (["--tune", "optimizer.lr"], "optimizer.lr does not vary in these jobs; what varies is pos, model.n_heads"),
        (["--target", "1"], "--target 1 must be a ratio"),
    ):
        with pytest.raises(SystemExit, match=words):
            main([str(compared), *out, *flags])


JOBS, SECONDS, MEBIBYTES = 500, 20, 1024


# Not ru_maxrss: a child's begins at what its parent has, which is these tests with torch.
MEASURE = """
import sys, time
from poslab.comparison.__main__ import main
started = time.perf_counter()
main([sys.argv[1]])
seconds = time.perf_counter() - started
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(seconds, int(peak.split()[1]) / 1024)
print([name for name in ("torch", "lightning", "matplotlib.pyplot") if name in sys.modules])
"""


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_five_hundred_jobs_in_time_and_memory_without_torch(tmp_path: Path) -> None:
    at = 0
    for pos in ("a", "b", "c", "d", "e"):
        for heads in (1, 2, 4, 8, 16):
            for seed in range(20):
                write_job(
                    tmp_path / f"job{at}", pos=pos, model__n_heads=heads, seed=seed, steps_to_99=200 + at % 37,
                    every=20, last=780, pictures=40_000,
                )  # fmt: skip
                at += 1
    assert at == JOBS
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    *_, measured, imported = done.stdout.splitlines()
    seconds, peak = map(float, measured.split())
    assert imported == "[]"
    assert len(rows(tmp_path)) == JOBS
    assert seconds < SECONDS
    assert peak < MEBIBYTES
    assert (tmp_path / "comparison.html").stat().st_size < 8_000_000
