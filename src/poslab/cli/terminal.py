"""Draws tables for the terminal that the process has, whatever its width and its characters."""

import io
import shutil
import sys

from rich import box
from rich.console import Console
from rich.table import Table

WIDEST_TABLE = 100


def drawn(table: Table, widest: int = WIDEST_TABLE) -> str:
    """A table as text: as wide as the terminal at most, with a frame of ASCII if the console has no other characters.

    Args:
        table: its frame is chosen here.
        widest: in characters; also the width without a terminal.
    """
    table.box = box.HEAVY_HEAD if can_print("┏━┃┌─│") else box.ASCII
    text = io.StringIO()
    width = min(widest, shutil.get_terminal_size((widest, 0)).columns)
    Console(file=text, width=width, force_terminal=False, markup=False, emoji=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def can_print(text: str) -> bool:
    """Whether the console has these characters."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
