"""The command line: quick answers, one line for an error, nothing left behind by a refusal."""

import logging
import os
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from poslab.cli import console as cli
from poslab.cli.explain import explain
from poslab.config.schema import checked
from poslab.errors import ConfigError, DivergedError
from poslab.experiment.report import final_report
from poslab.preflight.checks import preflight
from poslab.runs.folder import RunFolder
from poslab.runs.result import Result
from support.commands import WATCHED, seconds_of_children, start, typed
from support.configs import compose
from support.devices import no_device
from support.paths import CONF, ROOT


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--help"], 0), (["--cfg", "job"], 0), (["model.d_mode=64"], 1), (["model.n_heads=5"], 1)],
    ids=["help", "cfg", "typo", "sizes"],
)
def test_a_quick_question_is_answered_at_once(arguments: list[str], code: int, tmp_path: Path):
    best = float("inf")
    for _ in range(3):
        began = seconds_of_children()
        child = subprocess.run(
            [sys.executable, "-c", WATCHED, str(ROOT / "train.py"), *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        best = min(best, seconds_of_children() - began)
        assert child.returncode == code, child.stderr
        assert child.stderr.splitlines()[-1] == "no torch"
        if best < 1.5:
            break
    assert best < 1.5, f"took {best:.2f} s as the best of three"
    assert list(tmp_path.iterdir()) == []


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
def test_an_error_is_one_line_on_stderr(arguments: list[str], parts: list[str], tmp_path: Path):
    child = start(*arguments, cwd=tmp_path)
    assert child.returncode == 1
    (line,) = child.stderr.splitlines()
    assert line.startswith("error: ")
    assert all(part in line for part in parts), line
    assert "Traceback" not in child.stderr + child.stdout
    assert list(tmp_path.iterdir()) == [], "a refused configuration leaves nothing behind"


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["model.d_mode=64"], ["model.n_heads=5"]])
def test_the_whole_traceback_on_demand(arguments: list[str], tmp_path: Path):
    child = start(*arguments, cwd=tmp_path, POSLAB_DEBUG="1")
    assert child.returncode != 0
    assert "Traceback (most recent call last)" in child.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("active_environment")
def test_a_short_run_says_what_matters_and_nothing_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    assert typed(tmp_path, "data.steps_per_epoch=3", "trainer.max_epochs=2", "diagnostics=none") is None
    out, err = capfd.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert [line.split()[0] for line in lines[:4]] == ["run", "seed", "epoch", "epoch"], "a library's remark"
    assert lines[4].startswith("run completed")
    assert lines[-1].startswith("see it: tensorboard --logdir outputs/runs/copy-learned-d32-h4-s0_")


def test_what_a_library_warns_of_is_in_the_log_file_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    record = logging.LogRecord("py.warnings", logging.WARNING, "", 0, "UserWarning: too many workers", (), None)
    handler = cli.ConsoleHandler()
    handler.handle(record)
    assert capsys.readouterr().out == ""
    record.name = "poslab.experiment.run"
    handler.handle(record)
    assert capsys.readouterr().out == "UserWarning: too many workers\n"


def test_a_run_that_diverges_ends_in_one_line(tmp_path: Path):
    said = typed(tmp_path, "optimizer.lr=1e10", "diagnostics=none", "hydra.run.dir=run")
    assert said.startswith("error: train/loss is nan at step ")
    assert "optimizer.lr" in said
    assert "\n" not in said
    assert '"status": "diverged"' in (tmp_path / "run" / "result.json").read_text(encoding="utf-8")


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


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["pos=sinusoidal", "pos.bas=3"], ["'pos.bas'", "'pos.base'"]),
        (["pos=sinusoidal", "+pos.bas=3"], ["'pos.bas'", "'pos.base'"]),
        (["task=repeat", "task.seq_lenn=4"], ["'task.seq_lenn'", "'task.seq_len'"]),
        (["diagnostics=heads", "diagnostics.heads.evry=2"], ["evry", "'diagnostics.heads.every'"]),
        (["hydra.run.dri=x"], ["hydra.run.dri"]),
        (["--config-name", "trian"], ["trian"]),
        (["--config-dir", "nowhere"], ["nowhere", "not found"]),
        (["seed=0,1"], ["seed=0,1", "-m"]),
        (["~model.d_model"], ["model.d_model"]),
        (["model.d_model=???"], ["model.d_model"]),
        (["model.d_model"], ["'model.d_model' sets nothing", "key=value"]),
        (["learned"], ["'learned' sets nothing", "key=value"]),
        (["~pos"], ["no value for pos", "key=value", "--help"]),
        (["~task"], ["no value for task", "key=value", "--help"]),
        (["pos=null"], ["pos=null chooses nothing", "none, rope, sinusoidal"]),
        (["-m", "diagnostics=none,null"], ["diagnostics=null chooses nothing", "heads", "position_table"]),
        (["diagnostics=[heads,foo]"], ["diagnostics=foo", "heads", "position_table"]),
        (["--seed", "1"], ["unrecognized arguments: --seed", "--help"]),
        (["pos=none", "-m", "seed=1"], ["unrecognized arguments: seed=1", "together"]),
        (["--cfg"], ["--cfg", "expected one argument"]),
        (["hydra.run.dir=é"], ["hydra.run.dir", "é", "quotes"]),
        (["hydra.run.dir='\udcff'"], ["hydra.run.dir", "\\udcff", "no UTF-8"]),
        (["model.token_init='a\x1b[31m\nb'"], ["model.token_init=a\\x1b[31m b"]),
        (["two\nlines"], ["'two lines' sets nothing"]),
        ([f"seed={'9' * 5000}"], ["seed", "5000 digits"]),
        ([f"model.token_init={'x' * 5000}"], ["model.token_init=xxx", "xxx ... xxx", "choose one of normal"]),
        (["hydra.run.dir=" + "x" * 300], ["cannot write to xxx", "too long", "hydra.run.dir="]),
        (["-m", "hydra.sweep.dir=" + "x" * 300], ["cannot write to xxx", "too long", "hydra.sweep.dir="]),
        (["hydra.output_subdir=''"], ["hydra.output_subdir=", "no name"]),
        (["-m", "hydra.output_subdir=../x", "seed=0,1"], ["hydra.output_subdir=../x", "no name"]),
        (["hydra.job.name=a/b"], ["hydra.job.name=a/b", "without a slash"]),
        (["hydra.job.chdir=${seed}"], ["hydra.job.chdir", "seed"]),
        (["hydra.verbose=3"], ["Hydra", "AssertionError"]),
        (["diagnostics=[[],heads]"], ["Hydra", "TypeError"]),
        (["hydra.sweeper.params={seed:'0,1'}"], ["hydra.sweeper.params"]),
    ],
    ids=lambda value: ascii(" ".join(value))[:60] if isinstance(value, list) else None,
)
def test_what_a_person_may_mistype(arguments: list[str], parts: list[str], tmp_path: Path):
    said = typed(tmp_path, *arguments)
    assert isinstance(said, str)
    assert said.startswith("error: ")
    assert "\n" not in said
    assert all(part in said for part in parts), said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["pos=sinusoidal", "pos.init_std=0.1"], ["task=repeat", "task.length=4"]])
def test_a_key_is_never_suggested_for_itself(arguments: list[str], tmp_path: Path):
    key = arguments[1].partition("=")[0]
    said = typed(tmp_path, *arguments)
    assert f"unknown key '{key}'" in said
    assert f"did you mean '{key}'" not in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["+pos.foo=1"],
        ["pos._target_=poslab.tasks.copy.CopyTask"],
        ["pos=sinusoidal", "model.d_model=33", "model.n_heads=3"],
        ["model.token_init=file", "model.token_file=none.npy"],
        ["diagnostics.heads.every=-1"],
        ["trainer=gpu"],
    ],
    ids=" ".join,
)
def test_a_refusal_that_needs_torch_leaves_nothing_either(arguments: list[str], tmp_path: Path):
    no_device(patch := pytest.MonkeyPatch())
    try:
        assert str(typed(tmp_path, *arguments)).startswith("error: ")
    finally:
        patch.undo()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "defaults: [schema, _self_]\n"], ids=["handmade", "old"])
def test_a_configuration_that_says_nothing_of_hydra_is_checked_too(content: str, tmp_path: Path):
    """Without the callback in it, Hydra would make a folder and the run would fail in there."""
    settings = yaml.safe_dump(asdict(checked(compose())), sort_keys=False)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own.yaml").write_text(content + settings, encoding="utf-8")
    said = typed(tmp_path, "--config-dir", "own", "--config-name", "own", "model.n_heads=5")
    assert str(said).startswith("error: model.d_model=32 cannot be split into model.n_heads=5")
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_resume_where_there_is_nothing_to_go_on_with_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    quick = ("trainer.max_steps=2", "diagnostics=none", "logger=none", "hydra.run.dir=run")
    assert typed(tmp_path, *quick, "resume=auto") is None
    assert "resume=auto found no checkpoint there: the run starts at step 0" in capsys.readouterr().out


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


def test_a_failure_inside_the_run_is_one_line_and_its_traceback_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(*args: object) -> None:
        raise RuntimeError("the disk\nis gone")

    monkeypatch.setattr("poslab.training.learner.token_loss", fail)
    said = typed(tmp_path, "hydra.run.dir=run", "diagnostics=none")
    assert said == "error: RuntimeError: the disk is gone (POSLAB_DEBUG=1 shows the traceback)"
    assert "Traceback" not in capsys.readouterr().out
    assert "Traceback (most recent call last)" in (tmp_path / "run" / "train.log").read_text()


def test_the_command_to_go_on_can_be_pasted_where_the_path_has_an_equals_sign(tmp_path: Path):
    folder = tmp_path / "epoch=1,step=2 it's"
    result = Result(status="interrupted", seed=0)
    (line,) = [line for line in final_report(result, RunFolder(folder), False).splitlines() if "go on" in line]
    *_, resume, where = shlex.split(line)
    parser = OverridesParser.create()
    assert parser.parse_override(resume).value() == "auto"
    assert parser.parse_override(where).value() == str(folder)


def test_preflight_passes_the_default_job(tmp_path: Path):
    job = preflight(compose(), tmp_path / "run").job
    assert (job.model.d_model, job.model.n_heads) == (32, 4)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConfigError("a=1 is\n   wrong"), "a=1 is wrong"),
        (DivergedError("train/loss is nan"), "train/loss is nan"),
        (ValueError("d_model 3"), "d_model 3"),
        (
            MemoryError("Unable to allocate 4 GiB"),
            "out of memory (Unable to allocate 4 GiB); "
            "use a smaller data.batch_size, data.val_batch_size, model or task.length, or free some: what was saved is "
            "there, and the same command with resume=auto and hydra.run.dir=<its folder> goes on",
        ),
        (RuntimeError("boom\nbang"), "RuntimeError: boom bang (POSLAB_DEBUG=1 shows the traceback)"),
        (ValueError(), "ValueError: (POSLAB_DEBUG=1 shows the traceback)"),
        (HydraException("one\ntwo\nSee https://hydra.cc/x"), "one two"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_any_error_becomes_one_line(error: Exception, line: str):
    assert " ".join(explain(error, CONF).split()) == line
    assert "\n" not in explain(error, CONF)


@pytest.mark.parametrize(("value", "wanted"), [("1", True), ("yes", True), ("0", False), ("", False), (None, False)])
def test_debugging_is_a_choice(value: str | None, wanted: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("POSLAB_DEBUG", raising=False)
    if value is not None:
        monkeypatch.setenv("POSLAB_DEBUG", value)
    assert cli.debugging() is wanted


def test_this_file_s_helper_puts_the_process_back(tmp_path: Path):
    before = (logging.getLogger().handlers[:], sys.argv[:], os.getcwd(), os.environ.get("HYDRA_FULL_ERROR"))
    typed(tmp_path, "model.d_mode=1")
    assert before == (logging.getLogger().handlers, sys.argv, os.getcwd(), os.environ.get("HYDRA_FULL_ERROR"))
