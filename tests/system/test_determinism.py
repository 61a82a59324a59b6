"""Same seed, same numbers: what `deterministic` switches on, and that nothing else of a process moves them."""

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from poslab.errors import DivergedError
from poslab.system.determinism import WORKSPACE, deterministic_algorithms
from support.runs import train

SHORT = ("data.steps_per_epoch=15", "data.val_examples=32", "trainer.max_epochs=2", "model.dropout=0.1")
QUIET = (*SHORT, "diagnostics=none", "logger=none")


def state() -> tuple[object, ...]:
    cudnn = torch.backends.cudnn
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        cudnn.deterministic,
        cudnn.benchmark,
        os.environ.get(WORKSPACE),
    )


def table(folder: Path) -> bytes:
    return (folder / "metrics.csv").read_bytes()


@pytest.mark.parametrize("before", [None, ":16:8"])
def test_it_holds_inside_and_everything_is_as_it_was_afterwards(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WORKSPACE, raising=False)
    if before is not None:
        monkeypatch.setenv(WORKSPACE, before)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    outside = state()
    with deterministic_algorithms(False):
        assert state() == outside
    with deterministic_algorithms(True):
        assert state() == (True, False, True, False, before or ":4096:8")
    assert state() == outside
    # Where torch has no deterministic kernel it raises, also on a CPU.
    with pytest.raises(RuntimeError, match="deterministic"), deterministic_algorithms(True):
        torch.empty(2).put_(torch.tensor([0, 0]), torch.ones(2))
    assert state() == outside


def test_a_job_that_asks_for_it_has_it_and_the_next_one_in_the_process_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from poslab.training import learner as module

    outside, seen, real = state(), [], module.token_loss
    monkeypatch.setattr(module, "token_loss", lambda *tensors: (seen.append(state()[0]), real(*tensors))[1])
    # However the job ends.
    with pytest.raises(DivergedError):
        train(tmp_path / "diverged", *QUIET, "optimizer.lr=1e19", "deterministic=true")
    assert set(seen) == {True}
    assert state() == outside
    seen.clear()
    train(tmp_path / "off", *QUIET)
    assert set(seen) == {False}
    seen.clear()
    train(tmp_path / "on", *QUIET, "deterministic=true")
    assert set(seen) == {True}
    # A CPU's kernels are deterministic anyway: the same numbers.
    assert table(tmp_path / "on") == table(tmp_path / "off")


def test_a_job_is_the_same_alone_and_after_others_in_one_process(tmp_path: Path) -> None:
    """With another length of the random stream before it, other workers, other diagnostics, other threads."""
    alone = table(train(tmp_path / "alone", *QUIET, "seed=5"))
    for name, others, own in (
        ("first", (), ()),
        ("second", ("seed=1", "pos=sinusoidal"), ("data.num_workers=2",)),
        ("third", ("task=repeat", "model.d_model=16"), ()),
    ):
        if others:
            train(tmp_path / f"before {name}", *QUIET, *others)
        torch.rand(7)
        assert table(train(tmp_path / name, *QUIET, "seed=5", *own)) == alone, name
    assert table(train(tmp_path / "another", *QUIET, "seed=6")) != alone
    result = json.loads((tmp_path / "alone/result.json").read_text())
    assert result["seed"] == 5
    assert result["versions"] == {"python": platform.python_version()} | {
        name: version(name) for name in ("poslab", "torch", "lightning", "hydra-core", "tensorboard", "numpy")
    }
