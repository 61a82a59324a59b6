"""Stops runs at a chosen step, and compares what they leave with a run that was never stopped."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from poslab.errors import StoppedError
from poslab.runs.result import stored_result, stored_status
from support.child_patches import WHEN_TORCH_IS_LOADED
from support.commands import start
from support.runs import train

TINY = (
    "data.steps_per_epoch=12",
    "data.val_examples=32",
    "trainer.max_epochs=2",
    "trainer.log_every_n_steps=5",
    "diagnostics=none",
)


Wholes = Callable[..., Path]


def content(folder: Path, name: str = "last") -> dict[str, Any]:
    return torch.load(folder / f"checkpoints/{name}.ckpt", weights_only=True)


def same(one: Any, other: Any) -> bool:
    """Whether two parts of checkpoints are equal to the last bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


def assert_same(folder: Path, whole: Path) -> None:
    """Two runs end alike: numbers, parameters, optimiser, schedule, random state, what was trained on."""
    assert stored_status(folder) == stored_status(whole) == "completed"
    tables = sorted(path.relative_to(whole) for path in whole.rglob("metrics.csv"))
    assert tables
    for table in tables:
        assert (folder / table).read_bytes() == (whole / table).read_bytes(), table
    for path in sorted(whole.rglob("*.ckpt")):
        ours, theirs = (torch.load(root / path.relative_to(whole), weights_only=True) for root in (folder, whole))
        for part in ("state_dict", "global_step", "optimizer_states", "lr_schedulers", "poslab"):
            assert same(ours.get(part), theirs.get(part)), (path.name, part)
    parts = ("metrics", "batches_by_length", "parameters")
    assert [stored_result(folder)[part] for part in parts] == [stored_result(whole)[part] for part in parts]


@pytest.fixture(scope="session")
def whole(finished_runs: Wholes) -> Wholes:
    """An undisturbed run by its settings."""
    return lambda *overrides: finished_runs(*TINY, *overrides)


def told_to_stop(
    folder: Path, update: int, monkeypatch: pytest.MonkeyPatch, *overrides: str, by: int = signal.SIGTERM
) -> StoppedError:
    """A run that gets a signal in the given update (from 1)."""
    from poslab.training import module

    real, losses = module.TrainingModule.on_train_batch_end, []

    def tell(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        losses.append(1)
        if len(losses) == update - 1:
            os.kill(os.getpid(), by)

    with monkeypatch.context() as patch:
        patch.setattr(module.TrainingModule, "on_train_batch_end", tell)
        with pytest.raises(StoppedError) as ended:
            train(folder, *TINY, *overrides)
    return ended.value


def stopped_at(folder: Path, update: int, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> Path:
    """A run that someone stops by Ctrl-C in the given update."""
    from poslab.training import learner as module

    real, calls = module.token_loss, iter(range(update))

    def interrupt(*arguments: torch.Tensor) -> torch.Tensor:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, "token_loss", interrupt)
        with pytest.raises(SystemExit) as ended:
            train(folder, *overrides)
    assert ended.value.code == 130
    assert stored_status(folder) == "interrupted"
    return folder


def assert_ends_before_anything_is_made(name: str, folder: Path) -> None:
    """``python train.py`` gets this signal while it loads torch."""
    (folder / "sitecustomize.py").write_text(WHEN_TORCH_IS_LOADED.format(name=name))
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    ended = start(*TINY, cwd=folder, PYTHONPATH=path)
    assert ended.returncode == CODES[signal.Signals[name]]
    assert "Traceback" not in ended.stdout + ended.stderr
    assert not (folder / "outputs").exists()


NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]


CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 143, signal.SIGUSR2: 143}
