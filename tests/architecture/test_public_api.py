"""The public names, what importing them costs, and where schemes may be named."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import poslab
from support.paths import CONF

PACKAGE = Path(poslab.__file__).parent
POSITIONS = PACKAGE / "positions"
NAMES = [
    "EmbeddingComposer",
    "LearnedPositionalEmbedding",
    "MultiHeadSelfAttention",
    "SinusoidalPositionalEmbedding",
    "TinyAttentionLM",
    "TokenEmbedding",
    "count_parameters",
    "neighbour_cosine_curve",
]


def loaded_by(code: str, packages: list[str]) -> list[str]:
    """Which of the packages a fresh interpreter has loaded after this code."""
    found = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*[p for p in {packages} if p in sys.modules])"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return found.stdout.split()


@pytest.mark.parametrize("name", NAMES)
def test_public_names_are_importable(name: str) -> None:
    assert callable(getattr(poslab, name))
    assert name in poslab.__all__
    assert name in dir(poslab)


@pytest.mark.parametrize("name", poslab.__all__)
def test_every_exported_name_is_the_one_of_its_module(name: str) -> None:
    value = getattr(poslab, name)
    assert value.__name__ == name
    assert value.__module__.startswith("poslab.")
    assert value.__doc__


def test_there_is_a_version() -> None:
    assert poslab.__version__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="NoSuchName"):
        poslab.NoSuchName  # noqa: B018


@pytest.mark.process
def test_importing_the_package_alone_is_light() -> None:
    assert loaded_by("import poslab", ["torch", "numpy", "lightning", "hydra", "matplotlib"]) == []


HEAVY = ["lightning", "pytorch_lightning", "hydra", "omegaconf", "tensorboard", "matplotlib"]
TRAINS = f"""
from poslab import {", ".join(poslab.__all__)}
import sys
print(*[package for package in {["torch", *HEAVY]} if package in sys.modules])
import torch, poslab
model = poslab.TinyAttentionLM(10, 8, 2, 12)
model(torch.zeros(1, 3, dtype=torch.int64)).sum().backward()
assert poslab.count_parameters(model) > 0
print("trained")
"""


@pytest.mark.process
def test_the_modules_are_imported_and_train_without_lightning_or_hydra() -> None:
    assert loaded_by(TRAINS, HEAVY) == ["torch", "trained"], "loaded by the names, then what came with the training"


# One interface: outside the positions folder nobody knows a scheme by its name.


def scheme_names() -> set[str]:
    """What ``pos=`` takes; "none" is left out as a word of its own in many settings."""
    return {path.stem for path in (CONF / "pos").glob("*.yaml")} - {"none"}


def scheme_classes() -> set[str]:
    """Every class that a file of a scheme defines."""
    return {
        node.name
        for path in POSITIONS.glob("*.py")
        if path.stem != "base"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }


def docstrings(tree: ast.AST) -> set[int]:
    """Strings that stand alone as a statement: docstrings, of modules and of attributes too."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def naming(source: str, schemes: set[str], classes: set[str]) -> Iterator[tuple[int, str]]:
    """Line and name wherever code names a scheme: as a class, a module or a string."""
    tree = ast.parse(source)
    described = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
            found = [word for word in (node.value, *node.value.split(".")) if word in schemes | classes]
        elif isinstance(node, ast.Name):
            found = [node.id] if node.id in classes else []
        elif isinstance(node, ast.Attribute):
            found = [node.attr] if node.attr in classes else []
        elif isinstance(node, ast.Import | ast.ImportFrom):
            package = (node.module or "") + "." if isinstance(node, ast.ImportFrom) else ""
            imported = [(package + alias.name).split(".") for alias in node.names]
            found = [word for parts in imported if "positions" in parts for word in parts if word in schemes | classes]
        else:
            continue
        for name in dict.fromkeys(found):
            yield node.lineno, name


def test_no_file_outside_positions_names_a_scheme() -> None:
    """Except the list of exports. A new scheme is a new file in positions and a new yaml file, nothing else."""
    schemes, classes = scheme_names(), scheme_classes()
    assert {"learned", "sinusoidal"} <= schemes
    assert {"LearnedPositionalEmbedding", "SinusoidalPositionalEmbedding", "NoPositions"} <= classes
    found = [
        f"{path.relative_to(PACKAGE)}:{line} names {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if POSITIONS not in path.parents and path != PACKAGE / "__init__.py"
        for line, name in naming(path.read_text(), schemes, classes)
        # The comparison's outcome "learned": whether a run has learned its task.
        if not (path.parent.name == "comparison" and name == "learned")
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("if config.pos == 'learned': pass", {"learned"}),
        ("isinstance(x, LearnedPositionalEmbedding)", {"LearnedPositionalEmbedding"}),
        ("positions.SinusoidalPositionalEmbedding(3, 4)", {"SinusoidalPositionalEmbedding"}),
        ("from poslab.positions.sinusoidal import sinusoidal_table", {"sinusoidal"}),
        ("from poslab.positions import NoPositions, PositionScheme", {"NoPositions"}),
        ("from ..positions.learned import x", {"learned"}),
        ("import poslab.positions.learned", {"learned"}),
        ("target = 'poslab.positions.learned.LearnedPositionalEmbedding'", {"learned", "LearnedPositionalEmbedding"}),
        ("f'{x}' if name in {'sinusoidal': 1} else f'learned'", {"sinusoidal", "learned"}),
        ("from poslab.positions import PositionScheme", set()),
        ("def f():\n    'sinusoidal'\n    learned = 1\n    return 'a learned table'", set()),
    ],
)
def test_the_search_for_names_finds_what_it_should(source: str, names: set[str]) -> None:
    assert {name for _, name in naming(source, scheme_names(), scheme_classes())} == names
