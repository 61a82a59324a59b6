"""Every extra works as it is installed here, at versions that fit each other, and its versions are bounded."""

import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import psutil
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {
    extra: [Requirement(text) for text in texts if not text.startswith(f"{PROJECT['name']}[")]
    for extra, texts in PROJECT["optional-dependencies"].items()
}
REQUIRED = [Requirement(text) for text in PROJECT["dependencies"]]


@pytest.mark.parametrize("wanted", [*REQUIRED, *(one for each in EXTRAS.values() for one in each)], ids=str)
def test_a_version_that_nobody_has_tried_is_not_installed(wanted: Requirement) -> None:
    operators = {each.operator for each in wanted.specifier}
    assert ">=" in operators, "no lower bound"
    assert "<" in operators, "no upper bound"


def troubles(wanted: Requirement, seen: set[str]) -> list[str]:
    """What of a package and all that it needs is missing or of another version than asked for."""
    name = canonicalize_name(wanted.name)
    try:
        found = version(name)
    except PackageNotFoundError:
        return [f"{wanted} is not installed"]
    wrong = [] if wanted.specifier.contains(found, prereleases=True) else [f"{wanted} is not met by {found}"]
    if name not in seen:
        seen.add(name)
        for text in requires(name) or []:
            inner = Requirement(text)
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)):
                wrong += [f"{one}, needed by {name}" for one in troubles(inner, seen)]
    return wrong


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_is_installed_fits_together(extra: str) -> None:
    """A package whose own requirement is not met, as Optuna's of SQLAlchemy once was, ends in an error of its own."""
    # The tests run without these: Ray is big, and SciPy slows down every start.
    for left_out, package in (("ray", "ray"), ("oracles", "scipy")):
        if extra == left_out:
            pytest.importorskip(package)
    assert [trouble for wanted in EXTRAS[extra] for trouble in troubles(wanted, set())] == []


def test_joblib_runs_a_job_in_a_process_of_its_own() -> None:
    import os

    loky = pytest.importorskip("joblib.externals.loky")
    with loky.ProcessPoolExecutor(max_workers=1) as executor:
        assert executor.submit(os.getpid).result(timeout=120) != os.getpid()


def test_submitit_runs_a_job_in_a_process_of_its_own(tmp_path: Path) -> None:
    import os

    executor = pytest.importorskip("submitit").AutoExecutor(tmp_path, cluster="local")
    assert executor.submit(os.getpid).result() != os.getpid()


def test_optuna_keeps_a_study_in_sqlite(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    from poslab.sweeps.search.options import open_storage

    storage = f"sqlite:///{tmp_path}/trials.db"
    study = optuna.create_study(study_name="one", storage=open_storage(storage, tmp_path))
    study.tell(study.ask({"x": optuna.distributions.FloatDistribution(0, 1)}), 0.5)
    assert optuna.load_study(study_name="one", storage=open_storage(storage, tmp_path)).best_value == 0.5
    # Python 3.13 warns of a connection that is left to the garbage collector.
    assert [file.path for file in psutil.Process().open_files() if file.path.startswith(str(tmp_path))] == []
