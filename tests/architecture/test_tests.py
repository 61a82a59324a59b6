"""The tests mirror the packages, are small, and share code through ``tests/support`` alone."""

import ast
from pathlib import Path

from support.paths import ROOT

TESTS = ROOT / "tests"
FILES = sorted(TESTS.rglob("*.py"))
# Besides the packages: whole commands, faults injected into them, the tree itself, what takes long, what tests share.
OTHERS = {"architecture", "end_to_end", "faults", "slow", "support"}
MOST_LINES = 300


def imported(path: Path) -> set[str]:
    """The first parts of the modules that a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_each_folder_is_a_package_or_one_of_a_few_others() -> None:
    folders = {path.parent.relative_to(TESTS).parts[0] for path in FILES if path.parent != TESTS}
    packages = {path.parent.name for path in (ROOT / "src/poslab").glob("*/__init__.py")}
    assert folders - packages - OTHERS == set()


def test_no_test_file_imports_another_one() -> None:
    names = {path.stem for path in FILES if path.stem.startswith("test_")} | {"conftest", "tests"}
    assert {path.relative_to(TESTS).as_posix(): found for path in FILES if (found := imported(path) & names)} == {}


def test_files_are_of_one_subject() -> None:
    lines = {path.relative_to(TESTS).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {name: n for name, n in lines.items() if n > MOST_LINES} == {}
