"""Launchers that are installed, and those that are not."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.commands import start
from support.launching import EXTRAS, MODULES
from support.paths import CONF

NOT_INSTALLED = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{0}":
            raise ModuleNotFoundError("No module named '{0}'", name=name)

sys.meta_path.insert(0, Finder())
"""


@pytest.mark.process
@pytest.mark.parametrize("launcher", MODULES)
def test_a_launcher_that_is_not_installed_says_what_to_install(launcher: str, tmp_path: Path):
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(NOT_INSTALLED.format(MODULES[launcher]))
    ended = start("-m", "seed=1,2", f"hydra/launcher={launcher}", cwd=tmp_path, PYTHONPATH=str(tmp_path / "hook"))
    assert ended.returncode == 1
    assert ended.stderr == (
        f"error: hydra/launcher={launcher} needs {MODULES[launcher]}: pip install 'poslab[{EXTRAS[launcher]}]'\n"
    )
    assert "sweep" not in ended.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["hook"]


@pytest.mark.parametrize("launcher", MODULES)
def test_a_launcher_composes_from_its_own_file_alone(launcher: str):
    """Also where the public plugin of the same name is installed, whose settings Hydra would merge."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store("joblib", {"_target_": "a.b", "backend": "loky"}, group="hydra/launcher", provider="x")
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    from poslab.preflight.hydra import require_preflight

    require_preflight()

    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra_compose("train", overrides=[f"hydra/launcher={launcher}"], return_hydra_config=True)
    written = yaml.safe_load((CONF / "hydra" / "launcher" / f"{launcher}.yaml").read_text())
    assert dict(config.hydra.launcher) == written


def test_the_program_starts_quickly_with_every_launcher_installed(tmp_path: Path):
    code = (
        "import sys; from hydra.core.plugins import Plugins; Plugins.instance(); import hydra_plugins.poslab_launchers;"
        "print([name for name in ('joblib', 'ray', 'submitit', 'torch') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert ended.stdout.strip() == "[]", "imported at every start, --help included"
