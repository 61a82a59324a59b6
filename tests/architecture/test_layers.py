"""The packages are layers: a file imports only what lies below its own package, and no files import in a circle."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"

# From the ground up; those on one line do not know each other.
LAYERS = [
    ["errors", "positions", "tasks"],
    ["config", "model", "system"],
    ["cli", "data", "runs", "sizes"],
    ["build", "comparison", "evaluation", "launchers", "pictures"],
    ["__init__", "claims", "trained", "training"],
    ["diagnostics"],
    ["experiment", "preflight"],
    ["sweeps"],
]
FLOOR = {room: floor for floor, rooms in enumerate(LAYERS) for room in rooms}
MOST_ROOT_MODULES = 6
MOST_ROOMS_WITH_THE_JOB = 8
SHIMS = {"claims"}


def module_name(path: Path, source: Path) -> str:
    return ".".join(path.relative_to(source).with_suffix("").parts)


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module name of an import, wherever in the file it stands; of ``from a import b`` both ``a.b`` and ``a``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide which file is meant"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
                yield str(node.module)


def imports_of(source: Path) -> dict[str, set[str]]:
    """Each file of the package to the files that it imports; a package stands for its ``__init__``."""
    files = {module_name(path, source): path for path in source.glob("poslab/**/*.py")}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        found: set[str] = set()
        for node in imported(ast.parse(path.read_text(encoding="utf-8"))):
            found |= {each for each in (node, f"{node}.__init__") if each in files}
        graph[name] = found - {name}
        # ``from poslab.a import b`` of a file b is that file, not the package around it.
        graph[name] -= {
            f"{package}.__init__"
            for package in {each.rpartition(".")[0] for each in found}
            if f"{package}.__init__" in found
        }
    return graph


def room(name: str) -> str:
    return name.split(".")[1]


def upward(graph: dict[str, set[str]]) -> list[str]:
    """Imports that do not lead to a lower layer or stay in their package."""
    return [
        f"{name} imports {other}"
        for name, others in sorted(graph.items())
        for other in sorted(others)
        if room(name) != room(other) and FLOOR[room(name)] <= FLOOR[room(other)]
    ]


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Chains of files that lead back to their first."""
    done: set[str] = set()
    found: list[list[str]] = []

    def follow(name: str, path: list[str]) -> None:
        if name in path:
            found.append([*path[path.index(name) :], name])
        elif name not in done:
            for other in sorted(graph[name]):
                follow(other, [*path, name])
            done.add(name)

    for name in sorted(graph):
        follow(name, [])
    return found


def test_every_import_leads_down() -> None:
    assert upward(imports_of(SOURCE)) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(imports_of(SOURCE)) == []


def test_every_package_has_its_layer_and_a_sentence() -> None:
    package = SOURCE / "poslab"
    rooms = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms == set(FLOOR)
    for path in package.glob("*/__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_few_modules_stand_outside_a_package() -> None:
    modules = {path.stem for path in (SOURCE / "poslab").glob("*.py")} - {"__init__"} - SHIMS
    assert len(modules) <= MOST_ROOT_MODULES


def takes_the_job(function: ast.FunctionDef) -> bool:
    """Whether a parameter of the function is the whole configuration."""
    parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return any("TrainConfig" in ast.unparse(one.annotation) for one in parameters if one.annotation is not None)


def test_few_rooms_have_functions_of_the_whole_configuration() -> None:
    rooms = {
        room(module_name(path, SOURCE))
        for path in SOURCE.glob("poslab/**/*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and takes_the_job(node)
    }
    assert "build" in rooms
    assert len(rooms) <= MOST_ROOMS_WITH_THE_JOB, rooms
    assert not rooms & {"sizes", "system", "model", "launchers"}


@pytest.mark.parametrize(
    ("file", "line", "upward_ones", "in_circles"),
    [
        ("system/files.py", "def f():\n    from poslab.runs import table\n", 1, 1),
        ("errors.py", "import poslab.sweeps.plan\n", 1, 1),
        ("runs/result.py", "def f():\n    from poslab.runs.folder import RunFolder\n", 0, 1),
        ("cli/explain.py", "from poslab.errors import ConfigError\n", 0, 0),
    ],
)
def test_an_upward_import_and_a_circle_are_found(
    tmp_path: Path, file: str, line: str, upward_ones: int, in_circles: int
) -> None:
    for path in SOURCE.glob("poslab/**/*.py"):
        copy = tmp_path / path.relative_to(SOURCE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    with open(tmp_path / "poslab" / file, "a", encoding="utf-8") as target:
        target.write(f"\n\n{line}")
    graph = imports_of(tmp_path)
    assert (len(upward(graph)), len(circles(graph)) > 0) == (upward_ones, in_circles > 0)
