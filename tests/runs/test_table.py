"""The table of every number."""

import csv
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from poslab.runs.table import MetricsTable


def rows_of(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Column names and rows of a table as any program would read them."""
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    return list(reader.fieldnames or []), rows


def a_table(folder: Path) -> MetricsTable:
    table = MetricsTable(folder)
    table.log_metrics({"val/loss": 4.0, "val/accuracy": 0.1}, step=0)
    table.log_metrics({"train/loss": 3.5}, step=0)
    table.log_metrics({"train/loss": 1.25}, step=10)
    table.log_metrics({"val/loss": 1.0}, step=120)
    table.log_metrics({"train/loss": 2.5}, step=5)
    return table


def test_a_step_is_one_row_whatever_the_order_of_the_calls(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    table.save()
    names, rows = rows_of(tmp_path / "metrics.csv")
    assert names == ["step", "train/loss", "val/accuracy", "val/loss"]
    assert [row["step"] for row in rows] == ["0", "5", "10", "120"]
    assert rows[0] == {"step": "0", "train/loss": "3.5", "val/accuracy": "0.1", "val/loss": "4.0"}
    assert rows[1] == {"step": "5", "train/loss": "2.5", "val/accuracy": "", "val/loss": ""}


def test_numbers_come_back_exactly(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path)
    value = 0.1 + 0.2
    table.log_metrics({"a": value, "b": 1e-300}, step=1)
    table.save()
    _, rows = rows_of(tmp_path / "metrics.csv")
    assert float(rows[0]["a"]) == value
    assert float(rows[0]["b"]) == 1e-300


def test_a_value_that_is_logged_again_replaces_the_one_at_its_step(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path)
    table.log_metrics({"a": 1.0}, step=3)
    table.log_metrics({"a": 2.0}, step=3)
    assert [row["a"] for row in table.dated() if "a" in row] == [2.0]


def test_last_and_column(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    assert table.last() == {"val/loss": 1.0, "val/accuracy": 0.1, "train/loss": 1.25}
    assert [row["train/loss"] for row in table.dated() if "train/loss" in row] == [3.5, 2.5, 1.25]
    assert [row["val/loss"] for row in table.dated() if "val/loss" in row] == [4.0, 1.0]


def test_an_empty_table_is_a_header(tmp_path: Path) -> None:
    table = MetricsTable(tmp_path)
    table.save()
    assert (tmp_path / "metrics.csv").read_bytes() == b"step\n"
    assert table.last() == {}


def test_lines_end_the_same_way_on_every_system(tmp_path: Path) -> None:
    a_table(tmp_path).save()
    content = (tmp_path / "metrics.csv").read_bytes()
    assert b"\r" not in content
    assert content.endswith(b"\n")


@pytest.mark.parametrize("what", ["write", "rename"])
def test_a_table_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    table = a_table(tmp_path)
    table.save()
    before = (tmp_path / "metrics.csv").read_bytes()
    table.log_metrics({"val/loss": 0.5}, step=240)

    def half(path: Path, content: bytes) -> int:
        with open(path, "wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        if what == "write":
            patch.setattr(Path, "write_bytes", half)
        else:
            patch.setattr(os, "replace", refuse)
        with pytest.raises(OSError, match=r"No space|Input/output"):
            table.save()
    assert (tmp_path / "metrics.csv").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"], "half a file was left"
    table.save()
    assert len(rows_of(tmp_path / "metrics.csv")[1]) == 5


def test_a_run_that_goes_on_takes_over_its_rows_up_to_the_checkpoint(tmp_path: Path) -> None:
    before = a_table(tmp_path)
    before.save()
    after = MetricsTable(tmp_path)
    after.restore(10, before.text())
    assert after.rows == {step: row for step, row in before.rows.items() if step <= 10}
    after.log_metrics({"val/loss": 0.75}, step=120)
    after.save()
    assert [row["val/loss"] for row in rows_of(tmp_path / "metrics.csv")[1]] == ["4.0", "", "", "0.75"]
