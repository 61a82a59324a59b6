"""The command line: quick answers, one line for an error, nothing left behind by a refusal."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from poslab.preflight.checks import preflight
from support.commands import start, typed, watched
from support.configs import compose
from support.paths import CONF

Answer = tuple[subprocess.CompletedProcess[str], float, list[Path]]


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Answer]:
    """``answer(*arguments)``: the child, its processor seconds as the best of three, and the files that it left."""
    given: dict[tuple[str, ...], Answer] = {}

    def ask(*arguments: str) -> Answer:
        folder, best = tmp_path_factory.mktemp("question"), float("inf")
        for _ in range(3):
            child, seconds = watched("train.py", *arguments, cwd=folder)
            best = min(best, seconds)
            if best < 1.5:
                break
        return child, best, list(folder.iterdir())

    def get(*arguments: str) -> Answer:
        if arguments not in given:
            given[arguments] = ask(*arguments)
        return given[arguments]

    return get


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--help"], 0), (["--cfg", "job"], 0), (["model.d_mode=64"], 1), (["model.n_heads=5"], 1)],
    ids=["help", "cfg", "typo", "sizes"],
)
def test_a_quick_question_is_answered_at_once(arguments: list[str], code: int, answer: Callable[..., Answer]):
    child, seconds, left = answer(*arguments)
    assert child.returncode == code, child.stderr
    assert child.stderr.splitlines()[-1] == "no torch"
    assert seconds < 1.5, f"took {seconds:.2f} s as the best of three"
    assert left == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["model.d_mode=64"], ["model.d_mode", "model.d_model"]),
        (["model.n_heads=5"], ["model.d_model=32", "model.n_heads=5"]),
        (["pos=sinusoid"], ["pos=sinusoid", "did you mean 'sinusoidal'", "learned"]),
    ],
    ids=["key", "heads", "choice"],
)
def test_an_error_is_one_line_on_stderr(arguments: list[str], parts: list[str], answer: Callable[..., Answer]):
    child, _, left = answer(*arguments)
    assert child.returncode == 1
    line, of_the_watcher = child.stderr.splitlines()
    assert of_the_watcher == "no torch"
    assert line.startswith("error: ")
    assert all(part in line for part in parts), line
    assert "Traceback" not in child.stderr + child.stdout
    assert left == [], "a refused configuration leaves nothing behind"


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["model.d_mode=64"], ["model.n_heads=5"]])
def test_the_whole_traceback_on_demand(arguments: list[str], tmp_path: Path):
    child = start(*arguments, cwd=tmp_path, POSLAB_DEBUG="1")
    assert child.returncode != 0
    assert "Traceback (most recent call last)" in child.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_diverges_ends_in_one_line(tmp_path: Path):
    said = typed(tmp_path, "optimizer.lr=1e10", "diagnostics=none", "hydra.run.dir=run")
    assert said.startswith("error: train/loss is nan at step ")
    assert "optimizer.lr" in said
    assert "\n" not in said
    assert '"status": "diverged"' in (tmp_path / "run" / "result.json").read_text(encoding="utf-8")


def test_a_checkout_whose_package_is_not_the_imported_one_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    typed(tmp_path, "model.n_heads=5")
    assert capsys.readouterr().err == ""
    # Installed in the environment that make has put there.
    monkeypatch.setattr("poslab.__file__", str(CONF.parent / ".venv/lib/poslab/__init__.py"))
    assert typed(tmp_path, "model.n_heads=5").startswith("error: model.d_model=32 cannot be split")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        f"warning: Python imports poslab from {CONF.parent / '.venv/lib/poslab'} and not from this checkout"
    )
    assert line.endswith(f"-m pip install -e {CONF.parent}")


def test_help_shows_every_choice_and_how_to_use_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert typed(tmp_path, "--help") in (0, None)
    text = capsys.readouterr().out
    for group in ("pos", "task", "model", "optimizer", "trainer", "diagnostics", "logger", "experiment"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"{group}: ")]
        assert sorted(line.partition(": ")[2].split(", ")) == sorted(
            path.stem for path in (CONF / group).glob("*.yaml")
        )
    for needed in ("d_model: 32", "python train.py pos=sinusoidal model.n_heads=8", "-m", "POSLAB_DEBUG=1"):
        assert needed in text


def test_cfg_job_shows_the_configuration_with_the_overrides(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert typed(tmp_path, "--cfg", "job", "model.n_heads=8", "pos=sinusoidal") in (0, None)
    text = capsys.readouterr().out
    assert "n_heads: 8" in text
    assert "sinusoidal.SinusoidalPositionalEmbedding" in text
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_that_cannot_be_written_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    said = typed(tmp_path, "hydra.run.dir=file/run")
    assert said.startswith("error: cannot write to file/run (Not a directory)")
    assert "hydra.run.dir" in said


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(tmp_path: Path):
    assert typed(tmp_path, "hydra.run.dir=run", "trainer.max_steps=1", "diagnostics=none", "logger=none") is None
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    said = typed(tmp_path, "hydra.run.dir=run", "seed=1")
    assert said.startswith("error: run already holds a run")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_value_may_refer_to_another_one(tmp_path: Path):
    refers = ("data.batch_size=8", "data.val_batch_size=${data.batch_size}")
    quick = ("trainer.max_steps=1", "data.val_examples=8", "diagnostics=none", "logger=none")
    assert typed(tmp_path, "hydra.run.dir=run", *refers, *quick) is None
    assert "val_batch_size: 8" in (tmp_path / "run" / "config.yaml").read_text()
    assert refers[1] in json.loads((tmp_path / "run" / "result.json").read_text())["overrides"]


def test_preflight_passes_the_default_job(tmp_path: Path):
    job = preflight(compose(), tmp_path / "run").job
    assert (job.model.d_model, job.model.n_heads) == (32, 4)


def test_this_file_s_helper_puts_the_process_back(tmp_path: Path):
    before = (logging.getLogger().handlers[:], sys.argv[:], os.getcwd(), os.environ.get("HYDRA_FULL_ERROR"))
    typed(tmp_path, "model.d_mode=1")
    assert before == (logging.getLogger().handlers, sys.argv, os.getcwd(), os.environ.get("HYDRA_FULL_ERROR"))
