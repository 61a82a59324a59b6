"""Every task in conf/task, built with small sizes, and the oracle that deduces its rows."""

import numpy as np
import pytest
import yaml

from poslab.build import build
from poslab.tasks import Batch, Task
from poslab.tasks.base import IGNORED
from support.paths import CONF

OPTIONS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((CONF / "task").glob("*.yaml"))}


def tasks_with(*names: str) -> pytest.MarkDecorator:
    """Every task that has all of these options."""
    found = {task: options for task, options in OPTIONS.items() if set(names) <= set(options)}
    assert found
    return pytest.mark.parametrize("options", found.values(), ids=found.keys())


every_task = tasks_with()


def make(options: dict, **changed: int | None) -> Task:
    return build("task", {**options, **changed}, Task)


def length_option(options: dict) -> str:
    """The option that says how long rows are, in the task's own unit."""
    return "seq_len" if "seq_len" in options else "length"


def one_length(options: dict, length: int, **changed: int | None) -> Task:
    name = length_option(options)
    return make(options, **{name: length, f"min_{name}": None}, **changed)


def sizes_for(options: dict, length: int) -> dict[str, int]:
    """Symbols or keys enough for this length, also where none may stand twice."""
    return {name: 2 * length for name in ("n_symbols", "n_keys") if name in options}


def stands_somewhere(task: Task, targets: np.ndarray) -> np.ndarray:
    """The targets that are copied from somewhere: all that count, but EOS is nowhere."""
    return (targets != IGNORED) & (targets != getattr(task, "eos", None))


def check_by_the_oracle(task: Task, batch: Batch):
    for row, wanted in zip(*batch, strict=True):
        np.testing.assert_array_equal(task.deduce(row), wanted)
        cells = task.answer_cells(row)
        assert cells.shape == (len(row), len(row))
        assert cells.dtype == bool
        queries, keys = np.nonzero(cells)
        assert (keys <= queries).all(), "an answer above the diagonal cannot be seen"
        np.testing.assert_array_equal(row[keys], wanted[queries])
        np.testing.assert_array_equal(cells.any(axis=1), stands_somewhere(task, wanted))
