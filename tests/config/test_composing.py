"""Configuration files are read once, and a sweep's settings need not fit the default option."""

from pathlib import Path

import pytest
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode

from poslab.config.composing import Composer


@pytest.fixture
def composer(tmp_path: Path) -> Composer:
    (tmp_path / "pos").mkdir()
    (tmp_path / "main.yaml").write_text("defaults: [pos: learned, _self_]\nlr: 1\n")
    (tmp_path / "pos" / "learned.yaml").write_text("size: 1\n")
    (tmp_path / "pos" / "rope.yaml").write_text("base: 1\n")
    Plugins.instance()  # registers the kinds of places
    path = ConfigSearchPathImpl()
    for provider, place in (("hydra", "pkg://hydra.conf"), ("main", f"file://{tmp_path}"), ("schema", "structured://")):
        path.append(provider, place)
    return Composer(path)


def test_a_file_is_read_once_and_options_can_be_read_ahead(composer: Composer, tmp_path: Path) -> None:
    composer.load_configuration("main", [], RunMode.RUN)
    composer.read("pos", ["rope", "[a,b]"])
    for name, text in (("main", "lr: 2\n"), ("pos/learned", "size: 2\n"), ("pos/rope", "base: 2\n")):
        (tmp_path / f"{name}.yaml").write_text(text)
    assert composer.load_configuration("main", [], RunMode.RUN).pos == {"size": 1}
    later = composer.load_configuration("main", ["pos=rope", "lr=5"], RunMode.RUN)
    assert (later.lr, later.pos) == (5, {"base": 1})
    assert composer.load_configuration("main", ["pos=rope"], RunMode.RUN).lr == 1, "an override stays with its job"


def test_a_sweep_leaves_to_each_job_what_its_default_option_lacks(composer: Composer) -> None:
    words = ["pos=rope,learned", "pos.base=5"]
    assert composer.load_configuration("main", words, RunMode.MULTIRUN).hydra.overrides.task == words
    for wrong, mode in ((["pos.base=5"], RunMode.RUN), (["lrr=5", "pos.base=5"], RunMode.MULTIRUN)):
        with pytest.raises(ConfigCompositionException, match=r"Could not override '(pos.base|lrr)'"):
            composer.load_configuration("main", wrong, mode)
