"""A sweep that several of the tests compare is compared once."""

from pathlib import Path

import pytest

from poslab.comparison import write_comparison
from support.small_sweep import FILES, small_sweep


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with its comparison beside its jobs."""
    folder = small_sweep(tmp_path_factory.mktemp("compared") / "sweep")
    comparison = write_comparison([folder], folder)
    assert comparison.counts == {"completed": 10, "diverged": 1, "broken": 1, "invalid": 1}
    assert {path.relative_to(folder).as_posix() for path in comparison.files} == FILES
    return folder
