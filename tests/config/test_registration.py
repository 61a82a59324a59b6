"""What is registered with Hydra: every composition has a copy of its own, and every name is the package's own."""

import copy

import pytest
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf, open_dict

from poslab.config.registration import in_words, register
from poslab.preflight.hydra import require_preflight
from support.paths import CONF


def names(node: dict, group: str = "") -> set[str]:
    """Every registered name with its groups."""
    found: set[str] = set()
    for name, inside in node.items():
        found |= names(inside, f"{group}{name}/") if isinstance(inside, dict) else {f"{group}{name}"}
    return found


def test_another_program_that_imports_the_package_gets_no_name_that_it_may_have_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolvers: list[str] = []
    monkeypatch.setattr(OmegaConf, "register_new_resolver", lambda name, *given, **options: resolvers.append(name))
    store = ConfigStore.instance()
    monkeypatch.setattr(store, "repo", {})
    register()
    assert {name.rpartition("/")[2].partition("_")[0] for name in names(store.repo)} == {"poslab"}
    assert {name.partition("_")[0] for name in resolvers} == {"poslab"}


def test_what_is_loaded_from_the_store_can_be_changed_without_changing_the_store() -> None:
    register()
    require_preflight()
    store = ConfigStore.instance()
    first = store.load("poslab_schema.yaml").node
    with open_dict(first):
        first.seed = 7
        first.comparison.margin = 2.0
        first.extra = True
    second = copy.deepcopy(store).load("poslab_schema.yaml").node
    assert "extra" not in second
    assert OmegaConf.is_missing(second, "seed")
    assert second.comparison.margin == 1.25


def test_the_store_is_not_copied_with_what_refers_to_it() -> None:
    require_preflight()
    store = ConfigStore.instance()
    assert copy.deepcopy({"source": store})["source"] is store


def test_each_position_scheme_has_a_line_of_words_that_fits_a_terminal() -> None:
    sources = [{"path": str(CONF), "schema": "file"}, {"path": "hydra.conf", "schema": "pkg"}]
    root = OmegaConf.create({"hydra": {"runtime": {"config_sources": sources}}})
    lines = in_words("pos", _root_=root).splitlines()
    assert [line.split()[0] for line in lines] == sorted(path.stem for path in (CONF / "pos").glob("*.yaml"))
    assert len(lines) >= 25
    assert all(len(line.split()) > 3 and len(line) <= 105 for line in lines)
