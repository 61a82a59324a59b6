"""Markdown tables of measurements."""

from collections.abc import Mapping, Sequence
from statistics import median


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table with the first column left-aligned and the others right-aligned."""
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    lines += [f"| {' | '.join(shown(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def shown(cell: object) -> str:
    """A float with three significant digits; anything else as its text."""
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.3g}"


def ratios(times: Mapping[str, Sequence[float]], floor: str, unit: str = "s") -> str:
    """Table with median, minimum and maximum of each measure, and the ratio of its median to that of ``floor``."""
    base = median(times[floor])
    rows = [
        (name, median(taken), float(min(taken)), float(max(taken)), median(taken) / base)
        for name, taken in times.items()
    ]
    return table(("what", f"median {unit}", "min", "max", "ratio"), rows)
