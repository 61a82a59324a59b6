"""What the weight decay applies to, by hand, for one model and for several at once."""

import re
from pathlib import Path

import pytest
import torch
import yaml

from poslab.build import build_task
from poslab.config.schema import TrainConfig, checked
from poslab.errors import ConfigError
from poslab.training.decay import decayed_names, parameter_groups
from poslab.training.learners import build_learner
from support.configs import compose
from support.replica_runs import weights
from support.runs import train
from support.stopping import TINY, assert_same, told_to_stop

TABLES = {"embeddings.token_embedding.embedding.weight", "embeddings.positional_embedding.embedding.weight"}
ATTENTION = {"attention.qkv_proj.weight", "attention.out_proj.weight"}
BLOCK = {"attention.qkv_proj.weight", "attention.out_proj.weight", "mlp.0.weight", "mlp.2.weight"}
BLOCKS = {f"blocks.{index}.{name}" for index in (0, 1) for name in BLOCK}
TRANSFORMER = "model=transformer model.n_layers=2"
TOKENS = "embeddings.token_embedding.embedding.weight"
FIRE = {f"embeddings.positional_embedding.network.{index}.weight" for index in (0, 2)}
T5 = "embeddings.positional_embedding.weight"

BY_HAND = {
    ("matrices", ""): {*TABLES, *ATTENTION, "head.weight"},
    ("hidden", ""): {*ATTENTION, "head.weight"},
    # The head is the token table.
    ("hidden", "model.tie_embeddings=true"): ATTENTION,
    ("matrices", "model.tie_embeddings=true"): {*TABLES, *ATTENTION},
    ("matrices", f"pos=sinusoidal {TRANSFORMER}"): {TOKENS, *BLOCKS, "head.weight"},
    ("hidden", f"pos=sinusoidal {TRANSFORMER}"): {*BLOCKS, "head.weight"},
    ("matrices", f"pos=t5 {TRANSFORMER}"): {TOKENS, T5, *BLOCKS, "head.weight"},
    ("hidden", f"pos=t5 {TRANSFORMER}"): {*BLOCKS, "head.weight"},
    ("matrices", "pos=fire"): {TOKENS, *FIRE, *ATTENTION, "head.weight"},
    ("hidden", "pos=fire"): {*ATTENTION, "head.weight"},
}


def job_of(decay_on: str, overrides: str, *more: str) -> TrainConfig:
    return checked(compose("optimizer=adamw", f"optimizer.weight_decay_on={decay_on}", *overrides.split(), *more))


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize(("decay_on", "overrides"), BY_HAND)
def test_the_groups_by_hand(decay_on: str, overrides: str, seeds: int) -> None:
    """In a stack a bias has two axes too, and is none the less a bias."""
    job = job_of(decay_on, overrides, f"seeds={seeds}")
    learner = build_learner(job, build_task(job))
    named = dict(learner.named_parameters())
    wanted = BY_HAND[decay_on, overrides]
    assert wanted < named.keys()
    groups = parameter_groups(named.items(), learner.model_of(0), job.optimizer)
    name_of = {id(parameter): name for name, parameter in named.items()}
    found = [{name_of[id(parameter)] for parameter in group["params"]} for group in groups]
    assert found == [wanted, named.keys() - wanted]
    assert [group["weight_decay"] for group in groups] == [0.01, 0.0]
    assert {id(p) for p in named.values()} == {id(p) for p in learner.module.parameters()}


@pytest.mark.parametrize("seeds", [1, 2])
def test_all_parameters_are_one_group_in_the_order_of_older_checkpoints(seeds: int) -> None:
    job = job_of("all", TRANSFORMER, f"seeds={seeds}")
    learner = build_learner(job, build_task(job))
    (group,) = parameter_groups(learner.named_parameters(), learner.model_of(0), job.optimizer)
    assert all(one is other for one, other in zip(group["params"], learner.module.parameters(), strict=True))
    assert group["weight_decay"] == 0.01
    assert decayed_names(learner.model_of(0), "all") == dict(learner.named_parameters()).keys()


def test_what_does_not_decay_stays_where_it_has_no_gradient(tmp_path: Path) -> None:
    """Position rows beyond the trained length never receive gradient, so that only the decay moves them."""
    options = (*TINY, "logger=none", "optimizer=adamw", "optimizer.weight_decay=0.5", "model.max_context_length=20")
    ends = {
        decay_on: weights(train(tmp_path / decay_on, *options, f"optimizer.weight_decay_on={decay_on}"))
        for decay_on in ("all", "matrices", "hidden")
    }
    name = "model.embeddings.positional_embedding.embedding.weight"
    rows = {decay_on: end[name][12:] for decay_on, end in ends.items()}
    assert torch.equal(rows["all"], rows["matrices"])
    # lr 0.002, 24 updates.
    torch.testing.assert_close(rows["matrices"], rows["hidden"] * (1 - 0.002 * 0.5) ** 24)
    assert not torch.equal(ends["all"]["model.head.bias"], ends["matrices"]["model.head.bias"])


def test_an_older_run_resumes_with_decay_on_all_and_is_refused_with_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("optimizer=adamw", "optimizer.weight_decay=0.5", "optimizer.weight_decay_on=all")
    whole = train(tmp_path / "whole", *TINY, *settings)
    folder = tmp_path / "stopped"
    told_to_stop(folder, 14, monkeypatch, *settings)
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(re.sub(r"\n  weight_decay_on: all", "", text))
    assert "weight_decay_on" not in yaml.safe_load((folder / "config.yaml").read_text())["optimizer"]
    with pytest.raises(ConfigError, match=r"optimizer\.weight_decay_on was all and is matrices; give the old ones"):
        train(folder, *TINY, *settings[:-1], "resume=auto")
    train(folder, *TINY, *settings, "resume=auto")
    assert_same(folder, whole)
    (state,) = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["optimizer_states"]
    assert len(state["param_groups"]) == 1
