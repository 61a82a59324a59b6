"""The metrics that a search accepts are those that real runs leave in ``result.json``."""

import ast
import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from poslab.config.schema import checked
from poslab.pictures.gallery import Gallery
from poslab.sweeps.search.objectives import metric_names
from support.configs import compose
from support.paths import CONF, ROOT
from support.runs import train

TINY = (
    "model.d_model=8",
    "model.n_heads=2",
    "data.batch_size=2",
    "data.val_examples=8",
    "trainer.max_steps=2",
    "logger=none",
)


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


TASKS, SCHEMES = choices("task"), choices("pos")
EVERY_DIAGNOSTIC = f"diagnostics=[{','.join(name for name in choices('diagnostics') if name not in ('all', 'none'))}]"
LENGTHS = "diagnostics.lengths.n_examples=4"
TRANSFORMER = ("model=transformer", "model.n_layers=2")

CASES: list[tuple[str, ...]] = [
    # Each task and each scheme at least once.
    *(
        (f"task={task}", f"pos={pos}", EVERY_DIAGNOSTIC, LENGTHS)
        for task, pos, _ in zip(cycle(TASKS), cycle(SCHEMES), range(max(len(TASKS), len(SCHEMES))))
    ),
    ("diagnostics=none",),
    # Lengths within reach, and beyond the end of a learned table.
    ("pos=sinusoidal", "task.min_length=2", EVERY_DIAGNOSTIC, LENGTHS, *TRANSFORMER),
    ("pos=learned", "task.min_length=2", EVERY_DIAGNOSTIC, LENGTHS),
    ("pos=learned", "task=repeat", "diagnostics=[lengths]", LENGTHS, "diagnostics.lengths.lengths=[4,12,13]"),
    # One diagnostic is off.
    ("diagnostics=all", "diagnostics.head_ablation.every=0", "diagnostics.neighbour_similarity.max_offset=2"),
    # Tables with fewer rows than the largest offset: three and one.
    ("task=repeat", "task.seq_len=3", "diagnostics=[neighbour_similarity]"),
    ("task=repeat", "task.seq_len=1", "diagnostics=[neighbour_similarity]"),
    ("seeds=2", EVERY_DIAGNOSTIC, LENGTHS, *TRANSFORMER),
    ("seeds=2", "pos=none", "model.tie_embeddings=true", "diagnostics=[embedding_gradient]"),
]


def stored_names(result: dict[str, Any]) -> set[str]:
    return {*result["metrics"], *(f"parameters/{part}" for part in result["parameters"]), "seconds"}


@pytest.mark.parametrize("overrides", CASES, ids=" ".join)
def test_the_declared_names_are_those_of_a_real_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...]
) -> None:
    # Pictures have no names here and take most of the time.
    monkeypatch.setattr(Gallery, "order", lambda *_: None)
    train(tmp_path / "run", *TINY, *overrides)
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["status"] == "completed"
    declared = metric_names(checked(compose(*TINY, *overrides)))
    assert declared == stored_names(result)


def test_the_search_imports_nothing_that_trains() -> None:
    trains = ("lightning", "poslab.experiment", "poslab.training")
    for path in (ROOT / "src/poslab/sweeps/search").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name == one or name.startswith(f"{one}.") for name in names for one in trains), path
