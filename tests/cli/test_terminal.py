"""Tables on the console, whatever its width and its characters."""

import io
import shutil
from types import SimpleNamespace

import pytest
from rich.table import Table

from poslab.cli.terminal import drawn


def table() -> Table:
    made = Table()
    for name in ("trial", "optimizer.lr"):
        made.add_column(name, overflow="fold")
    made.add_row("0", "[red]0.00582[/red]")
    return made


@pytest.mark.parametrize(("encoding", "edge"), [("utf-8", "│"), ("cp437", "|"), ("cp1252", "|"), ("ascii", "|")])
def test_the_frame_is_of_characters_that_the_console_has(
    encoding: str, edge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    text = drawn(table())
    text.encode(encoding)
    (row,) = [line for line in text.splitlines() if "0.00582" in line]
    assert [cell.strip() for cell in row.split(edge)] == ["", "0", "[red]0.00582[/red]", ""]


@pytest.mark.parametrize("columns", [12, 30, 1000])
def test_the_table_is_no_wider_than_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda fallback: SimpleNamespace(columns=columns))
    assert max(map(len, drawn(table()).splitlines())) <= columns
    wide = Table()
    wide.add_row("x" * 500)
    assert max(map(len, drawn(wide, widest=120).splitlines())) == min(columns, 120)
