"""How large the vectors are that a model starts from."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from poslab import (
    LearnedPositionalEmbedding,
    PositionScheme,
    SinusoidalPositionalEmbedding,
    TinyAttentionLM,
    TokenEmbedding,
)
from poslab.model.start import start_scales
from poslab.runs.result import stored_result
from support.runs import train
from support.stopping import TINY, told_to_stop


def model_with(positions: PositionScheme, init_std: float = 0.02, length: int = 64) -> TinyAttentionLM:
    return TinyAttentionLM(65, 32, 4, length, positions=positions, token_embedding=TokenEmbedding(65, 32, init_std))


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_the_rms_of_the_sinusoidal_table_is_known(scale: float) -> None:
    found = start_scales(model_with(SinusoidalPositionalEmbedding(64, 32, scale=scale), init_std=0.5), 12)
    assert found["position_rms"] == pytest.approx(scale * math.sqrt(0.5), rel=1e-6)
    assert found["token_rms"] == pytest.approx(0.5, rel=0.05)
    assert found["position_over_token"] == pytest.approx(found["position_rms"] / found["token_rms"])


def test_only_the_rows_that_training_adds_are_measured() -> None:
    scheme = LearnedPositionalEmbedding(64, 32)
    with torch.no_grad():
        scheme.embedding.weight[:12] = 3.0
        scheme.embedding.weight[12:] = 1000.0
    model = model_with(scheme, init_std=0.0)
    assert start_scales(model, 12) == {"position_rms": 3.0, "token_rms": 0.0, "position_over_token": None}


@pytest.mark.parametrize("option", ["train_offset", "train_positions"])
def test_measuring_draws_nothing_and_leaves_the_model_in_its_mode(option: str) -> None:
    model = model_with(LearnedPositionalEmbedding(64, 32, **{option: "random"})).train()
    state = torch.get_rng_state()
    assert start_scales(model, 12) == start_scales(model, 12)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.positions.training


def test_a_scheme_that_adds_nothing_has_no_rms() -> None:
    found = start_scales(model_with(PositionScheme()), 12)
    assert (found["position_rms"], found["position_over_token"]) == (None, None)
    assert found["token_rms"] == pytest.approx(0.02, rel=0.05)


def test_numbers_that_json_cannot_hold_are_left_out() -> None:
    model = model_with(SinusoidalPositionalEmbedding(64, 32), init_std=math.inf)
    assert start_scales(model, 12)["token_rms"] is None


@pytest.mark.parametrize("pos", ["none", "rope", "alibi", "hard_alibi", "t5", "fire"])
def test_a_result_says_null_where_nothing_is_added(pos: str, tmp_path: Path) -> None:
    start = stored_result(train(tmp_path, *TINY, f"pos={pos}", "trainer.max_steps=1"))["start"]
    assert (start["position_rms"], start["position_over_token"]) == (None, None)
    assert start["token_rms"] == pytest.approx(0.02, rel=0.05)


def test_replicas_have_the_start_of_their_own_runs_and_a_bundle_the_means(finished_runs: Callable[..., Path]) -> None:
    bundle = finished_runs(*TINY, "seeds=2")
    own = [stored_result(bundle / f"copies/seed{seed}")["start"] for seed in (0, 1)]
    assert own == [stored_result(finished_runs(*TINY, f"seed={seed}"))["start"] for seed in (0, 1)]
    assert own[0] != own[1]
    means = {name: (own[0][name] + own[1][name]) / 2 for name in own[0]}
    assert stored_result(bundle)["start"] == pytest.approx(means)


@pytest.mark.parametrize("seeds", [(), ("seeds=2",)], ids=["single", "bundle"])
def test_the_start_is_still_there_after_a_resume(
    seeds: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_runs: Callable[..., Path]
) -> None:
    whole = finished_runs(*TINY, *seeds)
    told_to_stop(tmp_path, 14, monkeypatch, *seeds)
    wanted = stored_result(whole)["start"]
    assert stored_result(tmp_path)["start"] == wanted
    # What is stored counts: the models of another version of torch might start elsewhere.
    monkeypatch.setattr("poslab.experiment.run.start_scales", lambda *_: {"position_rms": -1.0})
    train(tmp_path, *TINY, *seeds, "resume=auto")
    parts = [".", *(f"copies/seed{seed}" for seed in (0, 1) if seeds)]
    for part in parts:
        assert stored_result(tmp_path / part)["start"] == stored_result(whole / part)["start"]
