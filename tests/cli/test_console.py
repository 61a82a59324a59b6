"""The console: what a run prints, and what stays in its log file."""

import io
import logging
import os
from importlib import import_module
from pathlib import Path

import pytest
from hydra.errors import HydraException

from poslab.cli import console as cli
from poslab.errors import ConfigError, DivergedError
from support.commands import typed
from support.paths import CONF

run_module = import_module("poslab.experiment.run")


@pytest.mark.usefixtures("active_environment")
def test_a_short_run_says_what_matters_and_nothing_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    assert typed(tmp_path, "data.steps_per_epoch=3", "trainer.max_epochs=2", "diagnostics=none") is None
    out, err = capfd.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert [line.split()[0] for line in lines[:5]] == ["start", "run", "seed", "epoch", "epoch"], "a library's remark"
    assert lines[0] == "start  copy, learned, d_model 32, n_heads 4, 6 steps: loading torch and Lightning"
    assert lines[5].startswith("run completed")
    assert lines[-1].startswith("see it: tensorboard --logdir outputs/runs/copy-learned-d32-h4-s0_")


def test_a_console_that_is_not_utf_8_gets_every_line_and_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def quieten() -> None:
        real_quieten()
        logging.getLogger("matplotlib.font_manager").info("generated new fontManager")

    real_quieten = run_module.quieten
    monkeypatch.setattr(run_module, "quieten", quieten)
    content = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(content, encoding="ascii", write_through=True))
    quick = ("trainer.max_steps=2", "diagnostics=none", "logger=none")
    assert typed(tmp_path, *quick, "hydra.run.dir='L\u00e4ufe \u2502'") is None
    lines = content.getvalue().decode("ascii").splitlines()
    assert lines[1] == "run    L\\xe4ufe \\u2502"
    table = lines[lines.index("run completed") + 1 :]
    assert table[0].startswith("+-----")
    assert any(line.startswith("| val/loss  ") for line in table)
    assert "fontManager" not in content.getvalue().decode()
    assert capsys.readouterr().err == ""


def test_what_a_library_warns_of_is_in_the_log_file_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    record = logging.LogRecord("py.warnings", logging.WARNING, "", 0, "UserWarning: too many workers", (), None)
    handler = cli.ConsoleHandler()
    handler.handle(record)
    assert capsys.readouterr().out == ""
    record.name = "poslab.experiment.run"
    handler.handle(record)
    assert capsys.readouterr().out == "UserWarning: too many workers\n"


def test_a_name_that_is_not_utf_8_does_not_cost_a_line_of_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    handler = cli.LogFile(str(tmp_path / "train.log"), encoding="utf-8")
    handler.handle(
        logging.LogRecord("poslab", logging.INFO, "", 0, "run    %s", (os.fsdecode(b"\xff/\xc3\xa4"),), None)
    )
    handler.close()
    assert (tmp_path / "train.log").read_text(encoding="utf-8") == "run    \\udcff/\u00e4\n"
    assert capsys.readouterr().err == ""


def test_resume_where_there_is_nothing_to_go_on_with_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    quick = ("trainer.max_steps=2", "diagnostics=none", "logger=none", "hydra.run.dir=run")
    assert typed(tmp_path, *quick, "resume=auto") is None
    assert "resume=auto found no checkpoint there: the run starts at step 0" in capsys.readouterr().out


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


@pytest.mark.parametrize(("value", "wanted"), [("1", True), ("yes", True), ("0", False), ("", False), (None, False)])
def test_debugging_is_a_choice(value: str | None, wanted: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("POSLAB_DEBUG", raising=False)
    if value is not None:
        monkeypatch.setenv("POSLAB_DEBUG", value)
    assert cli.debugging() is wanted


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("both"), 1),
        (DivergedError("both"), 1),
        (HydraException("both"), 1),
        (RuntimeError("mine"), "error: rank 1: RuntimeError: mine (POSLAB_DEBUG=1 shows the traceback)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_a_rank_above_0_prints_only_the_errors_of_its_own(
    error: Exception, code: int | str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(SystemExit) as ended, cli.one_line_errors(CONF):
        raise error
    assert ended.value.code == code
