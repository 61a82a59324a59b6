"""``seeds=N``: every replica is the run that it would have been alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from poslab.runs.result import stored_result
from poslab.training.module import ALGORITHMS
from support.paths import CONF
from support.replica_runs import DECAYED, QUIET, RANDOM_ROWS, TINY, rows, weights
from support.runs import train

SCHEMES = sorted(path.stem for path in (CONF / "pos").glob("*.yaml"))


MODELS = {
    "attention": ("model.d_model=16", "model.n_heads=2"),
    "transformer": ("model=transformer", "model.d_model=16", "model.n_heads=2", "model.n_layers=2"),
}


def assert_same_run(copy: Path, alone: Path) -> None:
    """The same numbers under the same names at the same steps, the same weights, the same record."""
    for one, two in zip(rows(copy), rows(alone), strict=True):
        assert one == pytest.approx(two, rel=2e-4, abs=2e-5)
        assert list(one) == list(two)
    for name in ("last", "best"):
        for (key, one), (other, two) in zip(weights(copy, name).items(), weights(alone, name).items(), strict=True):
            assert key == other
            if ALGORITHMS["adam"] is plain_descent:
                torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
                continue
            # A key's bias shifts all scores of a query alike: its gradient is nothing but rounding.
            if key.endswith("qkv_proj.bias"):
                one, two = (torch.cat([bias.chunk(3)[0], bias.chunk(3)[2]]) for bias in (one, two))
            # Adam makes a whole step of a gradient however small, and of its rounding too: a few weights show it.
            far = ~torch.isclose(one, two, rtol=1e-3, atol=2e-5)
            assert int(far.sum()) <= 1 + one.numel() // 100, key
            torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-3)
    results = [stored_result(folder) for folder in (copy, alone)]
    for key in ("status", "error", "parameters", "batches_by_length", "out_of_reach", "seed", "versions", "device"):
        assert results[0][key] == results[1][key], key
    assert results[0]["metrics"] == pytest.approx(results[1]["metrics"], rel=2e-4, abs=2e-5)
    configs = [yaml.safe_load((folder / "config.yaml").read_text()) for folder in (copy, alone)]
    assert configs[0] == configs[1]


def assert_as_alone(tmp_path: Path, *overrides: str, seed: int = 3) -> Path:
    """Train two copies at once and the second one alone; returns the bundle's folder."""
    bundle = train(tmp_path / "bundle", *overrides, f"seed={seed}", "seeds=2")
    alone = train(tmp_path / "alone", *overrides, f"seed={seed + 1}")
    assert_same_run(bundle / f"copies/seed{seed + 1}", alone)
    different = [weights(bundle / f"copies/seed{each}") for each in (seed, seed + 1)]
    assert any(not torch.allclose(different[0][name], different[1][name]) for name in different[0])
    return bundle


def plain_descent(parameters: Any, lr: float, **options: Any) -> torch.optim.Optimizer:
    """In Adam's place: its steps are as large as the gradient, so that rounding stays as small as it is."""
    return torch.optim.SGD(parameters, lr=20 * lr)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("pos", SCHEMES)
def test_every_scheme_and_model_as_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pos: str, model: str) -> None:
    monkeypatch.setitem(ALGORITHMS, "adam", plain_descent)
    assert_as_alone(tmp_path, *TINY, *QUIET, f"pos={pos}", *MODELS[model])


@pytest.mark.parametrize(
    "overrides",
    [
        ("task.min_length=2", "pos=alibi"),
        ("trainer.gradient_clip_norm=0.05", "optimizer.lr=0.05"),
        (*DECAYED, "optimizer.warmup_steps=4", "optimizer.decay=cosine"),
        (*DECAYED, "optimizer.weight_decay_on=all"),
        (*DECAYED, "optimizer.weight_decay_on=hidden", "model.tie_embeddings=true"),
        ("model.tie_embeddings=true",),
        ("model.tie_embeddings=true", *MODELS["transformer"]),
        ("trainer.max_steps=8", "trainer.log_every_n_steps=3"),
        ("model.token_init=hashed", "data.num_workers=1"),
        *(
            (*RANDOM_ROWS, f"pos={pos}", f"pos.{option}=random", *MODELS["transformer"])
            for pos in ("learned", "sinusoidal")
            for option in ("train_offset", "train_positions")
        ),
    ],
    ids=lambda overrides: "-".join(one.rpartition(".")[2].replace("=", "") for one in overrides),
)
def test_every_option_as_alone(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    assert_as_alone(tmp_path, *TINY, *QUIET, *overrides)


def test_in_bf16_as_alone(tmp_path: Path) -> None:
    bundle = train(tmp_path / "bundle", *TINY, *QUIET, "trainer.precision=bf16", "seeds=2")
    alone = train(tmp_path / "alone", *TINY, *QUIET, "trainer.precision=bf16", "seed=1")
    for name in ("train/loss", "val/loss"):
        curves = [[row[name] for row in rows(run) if name in row] for run in (bundle / "copies/seed1", alone)]
        assert curves[0] == pytest.approx(curves[1], rel=0.01)


def test_every_task_as_alone(tmp_path: Path) -> None:
    for task in sorted(path.stem for path in (CONF / "task").glob("*.yaml")):
        assert_as_alone(tmp_path / task, *TINY, *QUIET, f"task={task}", "trainer.max_epochs=1", "pos=t5")


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_with_every_diagnostic_as_alone(three_seeds: Path, seed: int) -> None:
    copy, alone = three_seeds / f"bundle/copies/seed{seed}", three_seeds / f"alone{seed}"
    assert_same_run(copy, alone)
    assert stored_result(copy)["overrides"] == stored_result(alone)["overrides"]
    assert "length/40" in stored_result(copy)["out_of_reach"]
    assert any(name.startswith("head_roles/") for name in stored_result(copy)["metrics"])
    # Pictures of the first copy only.
    pictures = {path.name for path in (copy / "figures").glob("*.png")}
    assert pictures == ({path.name for path in (alone / "figures").glob("*.png")} if seed == 3 else set())
    assert not (three_seeds / "bundle/figures").exists()
