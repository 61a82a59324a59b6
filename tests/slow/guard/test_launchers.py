"""Every launcher leaves the same files and numbers."""

from collections.abc import Callable

import pytest
import yaml

from support.commands import only_sweep
from support.launching import PARALLEL, Swept


@pytest.mark.process
@pytest.mark.parametrize("launcher", PARALLEL)
def test_every_launcher_leaves_the_same(launcher: str, swept: Callable[[str], Swept]):
    expected, found = only_sweep(swept("basic")[0]), only_sweep(swept(launcher)[0])
    names = sorted(path.parent.name for path in expected.glob("*/config.yaml"))
    assert names == sorted(path.parent.name for path in found.glob("*/config.yaml"))
    for name in names:
        assert (found / name / "metrics.csv").read_bytes() == (expected / name / "metrics.csv").read_bytes()
        before, now = (yaml.safe_load((sweep / name / "config.yaml").read_text()) for sweep in (expected, found))
        assert (now["data"].pop("num_workers"), before["data"].pop("num_workers")) == (2, 0)
        assert {**now, "diagnostics": {}} == before, "nothing of the launcher is in a job's configuration"
