"""The run with the default settings and its events, read once."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from support.event_files import read


@pytest.fixture(scope="session")
def default(finished_runs: Callable[..., Path]) -> tuple[Path, EventAccumulator]:
    folder = finished_runs()
    return folder, read(folder)
