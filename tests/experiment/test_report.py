"""What a run says at its end, and its settings as text and as HParams."""

import csv
import json
import logging
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from poslab.config.schema import TrainConfig, checked
from poslab.experiment.report import LossBar, final_report
from poslab.runs.folder import RunFolder
from poslab.runs.hparams import config_text, hparams
from poslab.runs.result import Result
from poslab.runs.table import MetricsTable
from support.configs import compose

METRICS = {
    "start/val/loss": 4.18219,
    "val/loss": 0.00063,
    "start/train/loss": 4.17426,
    "train/loss": 0.00081,
    "val/accuracy": 0.9951,
    "val/exact_match": 0.9961,
    "neighbour_similarity/offset_1": 0.35064,
    "neighbour_similarity/rows": 12.0,
}
EVERY_PICTURE = ["--samples_per_plugin", "images=10000"]
PARAMETERS = {"total": 8833, "token_embedding": 2080, "position": 384, "attention": 4224, "head": 2145}


def result(**changes: Any) -> Result:
    given: dict[str, Any] = {
        "status": "completed",
        "metrics": METRICS,
        "parameters": PARAMETERS,
        "seed": 0,
        "wall_seconds": 1.907,
    }
    return Result(**(given | changes))


def rows(report: str) -> dict[str, str]:
    """The table of a report: name to value, folded lines put together again."""
    found: dict[str, str] = {}
    name = ""
    for line in report.splitlines():
        if line.startswith("│"):
            left, value = (cell.strip() for cell in line.strip("│").split("│"))
            name = left or name
            found[name] = " ".join(filter(None, (found.get(name), value)))
    return found


def command(report: str) -> list[str]:
    """The words of the command that the last line gives, as a shell reads them."""
    prefix = "see it: "
    last = report.splitlines()[-1]
    assert last.startswith(prefix)
    return shlex.split(last.removeprefix(prefix))


def test_report_has_start_and_end_of_each_loss(tmp_path: Path) -> None:
    table = rows(final_report(result(), RunFolder(tmp_path), dashboard=True))
    assert table["val/loss"] == "4.1822 -> 0.0006"
    assert table["train/loss"] == "4.1743 -> 0.0008"


def test_report_has_the_rest_of_what_a_person_wants_to_know(tmp_path: Path) -> None:
    report = final_report(result(), RunFolder(tmp_path), dashboard=True)
    table = rows(report)
    assert "run completed" in report
    assert table["val/accuracy"] == "99.5% (next token)"
    assert table["val/exact_match"] == "99.6%"
    assert table["parameters"] == "total 8,833, token_embedding 2,080, position 384, attention 4,224, head 2,145"
    assert table["neighbour similarity at 1"] == "0.3506 (positions 0 to 11)"
    assert table["seconds"] == "1.9"
    assert table["results"].replace(" ", "") == str(tmp_path)
    assert "error" not in table


def test_numbers_of_a_real_run_are_the_numbers_of_its_files(finished_runs: Callable[..., Path]) -> None:
    folder = finished_runs()
    found = json.loads((folder / "result.json").read_text())
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    losses = [float(row["val/loss"]) for row in table if row["val/loss"]]
    report = rows(final_report(Result(**found), RunFolder(folder), dashboard=True))
    assert report["val/loss"] == f"{losses[0]:.4f} -> {losses[-1]:.4f}"
    assert found["metrics"]["start/val/loss"] == losses[0]
    assert found["metrics"]["best/val/loss"] == min(losses)
    assert f"total {found['parameters']['total']:,}" in report["parameters"]


@pytest.mark.usefixtures("active_environment")
@pytest.mark.parametrize("name", ["plain", "with space", "it's", "semi;colon", "$HOME", "[red]a[/red]", "a:smile:b"])
def test_the_command_can_be_pasted_whatever_the_path(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    report = final_report(result(), RunFolder(folder), dashboard=True)
    assert command(report) == ["tensorboard", "--logdir", str(folder), *EVERY_PICTURE]
    assert rows(report)["results"].replace(" ", "") == str(folder).replace(" ", "")


@pytest.mark.usefixtures("active_environment")
def test_a_path_below_the_working_directory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = final_report(result(), RunFolder(tmp_path / "outputs" / "my runs" / "a"), dashboard=True)
    assert command(report) == ["tensorboard", "--logdir", "outputs/my runs/a", *EVERY_PICTURE]
    assert "'outputs/my runs/a'" in report
    assert rows(report)["results"] == "outputs/my runs/a"


def test_the_command_names_the_program_where_the_environment_is_not_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    program, *_ = command(final_report(result(), RunFolder(tmp_path), dashboard=True))
    assert Path(program).absolute() == Path(sys.executable).with_name("tensorboard").absolute()


def test_a_very_long_path_is_whole_in_table_and_command(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 60)
    report = final_report(result(), RunFolder(folder), dashboard=True)
    assert command(report)[2] == str(folder)
    assert rows(report)["results"].replace(" ", "") == str(folder)


def test_without_a_dashboard_no_command_is_offered(tmp_path: Path) -> None:
    report = final_report(result(), RunFolder(tmp_path), dashboard=False)
    assert "tensorboard" not in report
    assert rows(report)["results"]


def test_a_scheme_without_a_table_says_so(tmp_path: Path) -> None:
    metrics = {name: value for name, value in METRICS.items() if not name.startswith("neighbour")}
    table = rows(final_report(result(metrics=metrics), RunFolder(tmp_path), dashboard=True))
    assert table["neighbour similarity at 1"] == "no table"


def test_a_failed_run_says_why_and_claims_nothing(tmp_path: Path) -> None:
    report = final_report(
        result(status="failed", metrics={}, parameters={}, error="RuntimeError: no device"),
        RunFolder(tmp_path),
        dashboard=True,
    )
    table = rows(report)
    assert "run failed" in report
    assert table["error"] == "RuntimeError: no device"
    assert table["neighbour similarity at 1"] == "-"
    assert "val/loss" not in table
    assert "parameters" not in table


@pytest.mark.parametrize(
    "error", ["IndexError: row[0] of [bold]", "KeyError: 'a[/b]'", "ValueError: use [0, 65) or [a]", "a :smile: b"]
)
def test_an_error_is_written_as_it_is(tmp_path: Path, error: str) -> None:
    report = final_report(result(status="failed", error=error), RunFolder(tmp_path), dashboard=True)
    assert rows(report)["error"] == error


# Settings


def job(*overrides: str) -> TrainConfig:
    return checked(compose(*overrides))


def test_hparams_are_flat_and_typed() -> None:
    settings = hparams(job("model.tie_embeddings=true", "trainer.max_steps=7"))
    assert settings["model.d_model"] == 32
    assert settings["trainer.max_steps"] == 7
    assert settings["optimizer.lr"] == 0.005
    assert settings["model.tie_embeddings"] is True
    assert settings["optimizer.algorithm"] == "adam"
    assert {type(value) for value in settings.values()} == {int, float, str, bool}
    assert type(settings["model.d_model"]) is int
    assert type(settings["seed"]) is int


def test_hparams_name_choices_as_on_the_command_line() -> None:
    settings = hparams(job("pos=sinusoidal", "task=repeat"))
    assert settings["pos"] == "sinusoidal"
    assert settings["task"] == "repeat"
    assert settings["pos.options"].startswith("base=10000.0, ")
    assert settings["task.options"] == "n_symbols=64, seq_len=12, min_seq_len=None"
    assert not any("_target_" in name for name in settings)


def test_hparams_are_the_same_columns_for_every_scheme_and_task() -> None:
    """TensorBoard takes the columns of a sweep from one of its runs."""
    columns = [list(hparams(job(*overrides))) for overrides in ((), ("pos=none",), ("pos=t5", "task=repeat"))]
    assert columns[0] == columns[1] == columns[2]


def test_hparams_leave_out_what_decides_no_result() -> None:
    assert hparams(job("diagnostics=none", "logger=none")) == hparams(job())


def test_hparams_tell_runs_apart() -> None:
    base = hparams(job())
    for override, name in [
        ("seed=3", "seed"),
        ("model.n_heads=8", "model.n_heads"),
        ("optimizer.betas=[0.8,0.9]", "optimizer.betas"),
        ("trainer.gradient_clip_norm=1.0", "trainer.gradient_clip_norm"),
        ("task.length=4", "task.options"),
    ]:
        changed = hparams(job(override))
        assert {key for key in changed if changed[key] != base[key]} == {name}


def test_config_text_is_the_whole_configuration() -> None:
    text = config_text(job("seed=3"))
    assert text.startswith("```yaml\n")
    assert text.endswith("\n```")
    read = yaml.safe_load(text.removeprefix("```yaml\n").removesuffix("```"))
    assert read["seed"] == 3
    assert read["model"]["d_model"] == 32
    assert read["pos"]["_target_"].startswith("poslab.")
    assert set(read) == {field.name for field in fields(TrainConfig)}


def test_epoch_lines_say_the_numbers_of_their_epoch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from support.runs import train

    small = ("data.steps_per_epoch=3", "data.val_examples=8", "data.batch_size=4", "trainer.log_every_n_steps=1")
    with caplog.at_level(logging.INFO):
        train(tmp_path / "run", *small, "trainer=cpu", "trainer.max_epochs=2", "diagnostics=none", "logger=none")
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("epoch")]
    with open(tmp_path / "run" / "metrics.csv", newline="", encoding="utf-8") as file:
        table = {int(row["step"]): row for row in csv.DictReader(file)}
    assert len(said) == 2
    for epoch, line in enumerate(said, start=1):
        row = table[3 * epoch]
        assert line.startswith(f"epoch  {epoch}, step {3 * epoch} of 6: ")
        assert f"train loss {float(row['train/loss_epoch']):.4f}" in line
        assert f"val loss {float(row['val/loss']):.4f}" in line
        assert f"next-token accuracy {100 * float(row['val/accuracy']):.1f} %" in line
        assert f"exact match {100 * float(row['val/exact_match']):.1f} %" in line


@pytest.mark.parametrize("width", [30, 80, 200])
def test_the_table_fits_the_terminal(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "get_terminal_size", lambda fallback: SimpleNamespace(columns=width))
    report = final_report(result(status="failed", error="an error " * 20), RunFolder(tmp_path / "run"), dashboard=True)
    table = [line for line in report.splitlines() if line.startswith(("┌", "│", "└"))]
    assert {len(line) for line in table} == {min(width, 100)}
    text = "".join(line.strip("│").split("│")[1].strip() for line in table if line.startswith("│"))
    assert "4.1822->0.0006" in text.replace(" ", "")
    assert str(tmp_path / "run") in text


@pytest.mark.usefixtures("as_shipped")
def test_the_progress_bar_counts_as_the_lines_do_and_shows_the_loss(tmp_path: Path):
    table = MetricsTable(tmp_path)
    bar = LossBar(table)
    bar._trainer = SimpleNamespace(max_epochs=3)  # type: ignore[assignment]
    assert bar._get_train_description(0).strip() == "epoch 1/3"
    assert bar.get_metrics(None, None) == {}  # type: ignore[arg-type]
    for step, loss in ((0, 4.0), (9, 2.5)):
        table.log_metrics({"train/loss": loss}, step)
    table.log_metrics({"val/loss": 1.0}, 10)
    assert bar.get_metrics(None, None) == {"train loss": 2.5}  # type: ignore[arg-type]
