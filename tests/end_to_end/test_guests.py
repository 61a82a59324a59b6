"""The package as a guest: another Hydra program in the same environment stays as it is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT

# A plug-in and a program of somebody else, with the names that this package's README uses.
PLUG_IN = """
from dataclasses import dataclass
from hydra.core.config_store import ConfigStore
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

@dataclass
class TheirSettings:
    _target_: str = "hydra_plugins.their_sweeper.TheirSweeper"
    n_trials: int = 3

class TheirSweeper(BasicSweeper):
    def __init__(self, n_trials):
        super().__init__(max_batch_size=None)

for name in ("optuna", "joblib"):
    group = "hydra/sweeper" if name == "optuna" else "hydra/launcher"
    ConfigStore.instance().store(group=group, name=name, node=TheirSettings, provider="theirs")
"""
PROGRAM = """
import json, sys
import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig

@hydra.main(version_base="1.1", config_path="conf", config_name="config")
def main(config):
    hydra = HydraConfig.get()
    store = ConfigStore.instance().repo
    print(json.dumps({
        "sweeper": dict(hydra.sweeper),
        "launcher": dict(hydra.launcher),
        "registered": {name: sorted(store["hydra"][name]) for name in ("sweeper", "launcher")},
        "at the top": sorted(name for name in store if name.endswith(".yaml")),
        "imported": [name for name in ("torch", "lightning", "optuna", "poslab") if name in sys.modules],
        "ours": sorted(name for name in sys.modules if name.startswith("hydra_plugins.poslab")),
    }, default=str))

main()
"""


@pytest.mark.process
def test_another_hydra_program_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "hydra_plugins").mkdir()
    (tmp_path / "hydra_plugins/their_sweeper.py").write_text(PLUG_IN)
    (tmp_path / "conf/hydra/launcher").mkdir(parents=True)
    (tmp_path / "conf/config.yaml").write_text(
        "defaults:\n- override hydra/sweeper: optuna\n- override hydra/launcher: joblib\n"
    )
    # Their file, which Hydra merges with their plug-in's settings of the same name.
    (tmp_path / "conf/hydra/launcher/joblib.yaml").write_text("n_trials: 7\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    path = os.pathsep.join([str(ROOT / "src"), str(tmp_path)])
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "program.py", "hydra.run.dir=."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "HYDRA_FULL_ERROR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    theirs = "hydra_plugins.their_sweeper.TheirSweeper"
    assert found["sweeper"] == {"_target_": theirs, "n_trials": 3}
    assert found["launcher"] == {"_target_": theirs, "n_trials": 7}
    assert found["registered"] == {
        "sweeper": ["basic.yaml", "optuna.yaml"],
        "launcher": ["basic.yaml", "joblib.yaml"],
    }
    assert found["at the top"] == ["_dummy_empty_config_.yaml"], "Hydra's own"
    assert found["imported"] == []
    assert found["ours"] == ["hydra_plugins.poslab_launchers", "hydra_plugins.poslab_sweepers"]
