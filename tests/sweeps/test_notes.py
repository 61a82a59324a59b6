"""What a person is told before jobs that can run, but show less than they seem to."""

import re
from pathlib import Path

import pytest

from poslab.launchers.pool import time_left
from poslab.sweeps.sweep import Progress
from support.commands import typed

QUICK = ("trainer=cpu", "trainer.max_steps=1", "data.val_examples=8", "diagnostics=none", "logger=none")
NOTE = "note   pos=alibi with model.n_heads=1 is nearly pos=none: its only slope is 2^-8; use more heads"


def test_a_run_says_it_before_it_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(tmp_path, "pos=alibi", "model.n_heads=1", *QUICK) is None
    lines = capsys.readouterr().out.splitlines()
    assert lines.count(NOTE) == 1
    assert lines.index(NOTE) < next(index for index, line in enumerate(lines) if line.startswith("epoch "))


def test_a_run_whose_tokens_start_alike_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(tmp_path, "model.token_init=hashed", "model.vocab_size=126", *QUICK) is None
    said = "note   model.token_init=hashed with model.d_model=32 has 125 different rows for 126 tokens: "
    assert said in capsys.readouterr().out


def test_a_run_of_several_heads_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(tmp_path, "pos=alibi", *QUICK) is None
    assert "note  " not in capsys.readouterr().out


def test_a_sweep_says_it_once_however_many_jobs_it_is_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(tmp_path, "-m", "pos=alibi,learned", "model.n_heads=1,4", "seed=1,2", *QUICK) is None
    said = capsys.readouterr().out
    assert said.count("note  ") == 1
    assert said.index(NOTE) < said.index("sweep  ") < said.index("run    ")
    jobs = [line for line in said.splitlines() if line.startswith("job    ")]
    assert jobs[0] == "job    1 of 8"
    assert all(re.fullmatch(rf"job    {n} of 8, about \d+ (s|min) left", jobs[n - 1]) for n in range(2, 9)), jobs


def test_the_time_left_is_that_of_the_jobs_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    progress = Progress(total=15, done=3)
    assert progress.begin() == "job    4 of 15"
    now += 30
    assert progress.begin() == "job    5 of 15, about 6 min left"
    now += 10
    assert progress.begin() == "job    6 of 15, about 4 min left"
    assert [time_left(seconds) for seconds in (0.2, 119, 3600, 7201)] == [
        "about 1 s left",
        "about 119 s left",
        "about 60 min left",
        "about 3 h left",
    ]
