"""What the tests of faults share: one server, and the run that nothing happens to."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import RUN, Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def undisturbed(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole `RUN`; beside it ``counts.json`` says how often it passes each point."""
    folder = tmp_path_factory.mktemp("undisturbed")
    faults = {"draw_in_background": {"whether": True}, "count_points": {"to": str(folder / "counts.json")}}
    ended = server.start(folder, *RUN, "hydra.run.dir=run", "resume=auto", faults=faults)
    assert (ended.code, ended.err) == (0, "")
    return folder / "run"


@pytest.fixture(scope="session")
def counts(undisturbed: Path) -> dict[str, int]:
    return json.loads((undisturbed.parent / "counts.json").read_text())
