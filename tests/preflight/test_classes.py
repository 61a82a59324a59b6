"""Classes that Hydra would build: only those of Hydra, of this package, and of packages that the user has named."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from poslab.build import build
from poslab.errors import ConfigError
from poslab.positions import PositionScheme
from poslab.preflight.classes import BUILT_BY_HYDRA, check_classes
from poslab.preflight.hydra import own_choices_first
from support.commands import typed
from support.paths import CONF

TRAP = "import os\nos.mkdir('imported')\n\nclass Trap:\n    def __init__(self, **given):\n        os.mkdir('built')\n"
MINE = (
    "from hydra.experimental.callback import Callback\n\nclass Mine(Callback):\n"
    "    def __init__(self):\n        print('mine was built')\n"
)
PLACES: dict[str, dict[str, Any]] = {
    "callbacks": {"callbacks": {"one": {"_target_": "trap.Trap"}}},
    "within a callback": {
        "callbacks": {
            "one": {
                "_target_": "hydra.experimental.callbacks.LogJobReturnCallback",
                "given": [{"_target_": "trap.Trap"}],
            }
        }
    },
    "sweeper": {"sweeper": {"_target_": "trap.Trap"}},
    "launcher": {"launcher": {"_target_": "hydra_plugins.trap.Trap"}},
    "handler": {"job_logging": {"handlers": {"one": {"class": "trap.Trap"}}}},
    "factory": {"hydra_logging": {"filters": {"one": {"()": "trap.Trap"}}}},
    "name of an object": {"job_logging": {"handlers": {"one": {"level": "ext://trap.Trap"}}}},
    "object in pieces": {"job_logging": {"handlers": {"one": {"level": "${word}//trap.Trap"}}}},
    "reference to a part": {"callbacks": {"one": "${pos}"}},
    "reference in the name": {"callbacks": {"one": {"_target_": "${word}"}}},
    "resolver": {"callbacks": {"one": "${oc.create:${pos}}"}},
    "module that another one imports": {"callbacks": {"one": {"_target_": "poslab.system.shell.subprocess.Popen"}}},
    "class that another module imports": {"callbacks": {"one": {"_target_": "poslab.system.shell.Path"}}},
    "function of the package": {"callbacks": {"one": {"_target_": "poslab.system.files.write_atomically"}}},
    "function of Hydra": {"callbacks": {"one": {"_target_": "hydra.utils.get_class", "path": "trap.Trap"}}},
}


def config(part: dict[str, Any]) -> Any:
    hydra = {name: {} for name in BUILT_BY_HYDRA} | {"job": {"name": "train"}} | part
    return OmegaConf.create({"hydra": hydra, "word": "ext:", "pos": {"_target_": "trap.Trap"}})


@pytest.mark.parametrize("place", [*PLACES])
def test_a_class_of_another_package_is_refused_in_one_line_and_not_imported(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trap.py").write_text(TRAP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError) as refused:
        check_classes(config(PLACES[place]))
    (part,) = PLACES[place]
    assert str(refused.value).startswith(f"hydra.{part}.")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "imported").exists()


def test_what_hydra_and_this_package_bring_passes() -> None:
    for file in CONF.glob("hydra/*/*.yaml"):
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        content.pop("defaults", None)
        check_classes(config({file.parent.name: content}))
    settings = yaml.safe_load((CONF / "hydra_settings.yaml").read_text(encoding="utf-8"))["hydra"]
    check_classes(config({name: settings[name] for name in ("job_logging", "hydra_logging")}))
    # What is swept over is no class that Hydra builds.
    check_classes(config({"sweeper": {"params": {"pos._target_": "a.B,c.D"}}}))
    stream = {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}
    to_file = {"class": "logging.FileHandler", "filename": "${hydra.runtime.output_dir}/${hydra.job.name}.log"}
    check_classes(config({"job_logging": {"handlers": {"one": stream, "two": to_file}}}))


def test_a_file_in_a_config_dir_cannot_name_a_class_of_a_package_that_the_user_has_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    stranger = {
        "defaults": ["schema", "hydra_settings", "_self_"],
        "hydra": {"callbacks": {"x": {"_target_": "mine.Mine"}}},
    }
    (tmp_path / "stranger.yaml").write_text(yaml.safe_dump(stranger))
    arguments = ("--config-dir", str(tmp_path), "--config-name", "stranger", "hydra.run.dir=run")
    said = typed(tmp_path, *arguments)
    assert said.startswith("error: hydra.callbacks.x._target_=mine.Mine lies outside Hydra and the package poslab")
    assert "POSLAB_PACKAGES=mine" in said
    assert "mine was built" not in capsys.readouterr().out
    monkeypatch.setenv("POSLAB_PACKAGES", "other, mine")
    # It has no settings of a job, so it ends after its callbacks were built.
    assert typed(tmp_path, *arguments).startswith("error: no value for ")
    assert "mine was built" in capsys.readouterr().out


def test_a_choice_of_the_program_is_not_merged_with_one_that_a_plug_in_has_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = ConfigStore.instance()
    monkeypatch.setattr(store, "repo", {})
    for group, name in (("hydra/sweeper", "optuna"), ("hydra/launcher", "joblib"), ("pos", "rope"), ("pos", "other")):
        store.store(name, {"_target_": "a.b"}, group=group, provider="a plug-in")
    own_choices_first(CONF)
    assert store.repo["hydra"] == {"sweeper": {}, "launcher": {}}
    assert [*store.repo["pos"]] == ["other.yaml"]


def test_a_scheme_of_a_package_that_the_user_has_named_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mylab.py").write_text(
        "from poslab.positions import PositionScheme\n\nclass Mine(PositionScheme):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    options = {"_target_": "mylab.Mine"}
    for named in ("", "my", "mylab.other"):
        monkeypatch.setenv("POSLAB_PACKAGES", named)
        with pytest.raises(ConfigError, match=r"pos\._target_=mylab\.Mine lies outside the package poslab"):
            build("pos", options, PositionScheme)
    monkeypatch.setenv("POSLAB_PACKAGES", "mylab")
    assert type(build("pos", options, PositionScheme)).__module__ == "mylab"
