"""The schema in Hydra's store: every composition has a copy of its own."""

import copy

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf, open_dict

from poslab.config.registration import register


def test_what_is_loaded_from_the_store_can_be_changed_without_changing_the_store() -> None:
    register()
    store = ConfigStore.instance()
    first = store.load("schema.yaml").node
    with open_dict(first):
        first.seed = 7
        first.comparison.margin = 2.0
        first.extra = True
    second = copy.deepcopy(store).load("schema.yaml").node
    assert "extra" not in second
    assert OmegaConf.is_missing(second, "seed")
    assert second.comparison.margin == 1.25


def test_the_store_is_not_copied_with_what_refers_to_it() -> None:
    register()
    store = ConfigStore.instance()
    assert copy.deepcopy({"source": store})["source"] is store
