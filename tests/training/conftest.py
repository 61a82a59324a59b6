"""A run of three replicas and the same seeds alone are trained once."""

from pathlib import Path

import pytest

from support.configs import compose
from support.replica_runs import TINY


@pytest.fixture(scope="session")
def three_seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with everything on, as a job of a sweep, and its copies alone beside it."""
    from poslab.experiment.run import run

    folder = tmp_path_factory.mktemp("three_seeds")
    typed = (
        *TINY,
        "task.min_length=2",
        "pos=learned",
        "diagnostics.lengths.lengths=[6,40]",
        "diagnostics.heads.every=1",
    )
    for name, more in (("bundle", ("seed=3", "seeds=3")), *((f"alone{n}", (f"seed={n}",)) for n in (3, 4, 5))):
        run(compose(*typed, *more), folder / name, (*typed, *more))
    return folder
