"""What a step, a look and a start may cost, in counts that no noise can move; ``make bench`` is for seconds."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from poslab.build import build_task
from poslab.config.schema import checked
from poslab.model import MultiHeadSelfAttention
from poslab.pictures import drawing
from poslab.runs.folder import RunFolder
from poslab.runs.table import MetricsTable
from poslab.runs.tensorboard import RunTensorBoard
from poslab.training.learners import build_learner
from poslab.training.module import TrainingModule
from poslab.training.replicas import Replica, Replicas
from support.configs import compose
from support.count_costs import LOG_EVERY
from support.paths import ROOT
from support.runs import train


@pytest.fixture(scope="module")
def costs() -> dict[str, dict[str, float]]:
    """Of a step, by job; from a process without the shape checks of the tests."""
    command = [sys.executable, "-m", "support.count_costs"]
    ended = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, check=True, timeout=240)
    return json.loads(ended.stdout)


def test_a_step_dispatches_fewer_operators_than_a_bare_loop(costs: dict[str, dict[str, float]]) -> None:
    # The optimiser is one of them, and not one for each parameter and part of its formula.
    assert costs["default"]["operators"] <= 0.7 * costs["bare"]["operators"]


def test_a_step_calls_little_python(costs: dict[str, dict[str, float]]) -> None:
    assert costs["default"]["python calls"] <= 7 * costs["bare"]["python calls"]


def test_a_step_reads_one_number_and_three_when_it_logs(costs: dict[str, dict[str, float]]) -> None:
    assert costs["default"]["numbers read"] <= 1 + 2 / LOG_EVERY


def test_logging_happens_on_the_interval_only(costs: dict[str, dict[str, float]]) -> None:
    for what in ("rows logged", "points logged"):
        assert costs["default"][what] == pytest.approx(1 / LOG_EVERY)
        # Of each copy, and their means.
        assert costs["seeds=4"][what] == pytest.approx(5 / LOG_EVERY)


def test_a_batch_is_made_whole_by_one_generator(costs: dict[str, dict[str, float]]) -> None:
    for job, copies in (("default", 1), ("seeds=4", 4)):
        assert (costs[job]["generators"], costs[job]["batches"]) == (copies, copies)


def test_four_copies_cost_little_more_operators_and_python_than_two_runs(costs: dict[str, dict[str, float]]) -> None:
    for what, most in (("operators", 1.8), ("python calls", 2.3)):
        assert costs["seeds=4"][what] <= most * costs["default"][what]


def test_between_two_logged_steps_an_accelerator_is_not_waited_for(
    tmp_path: Path,
) -> None:
    """A device other than the CPU is asked for numbers on the logging interval only."""
    job = checked(compose())
    only = Replica(job=job, overrides=[], folder=RunFolder(tmp_path), table=MetricsTable(tmp_path), board=None)
    module = TrainingModule(build_learner(job, build_task(job)), Replicas([only], only), job.optimizer, 10)
    module._trainer = SimpleNamespace(global_step=3, world_size=1)  # type: ignore[assignment]
    on_meta = torch.zeros(1, device="meta")
    # The meta device raises wherever a number is read from it.
    assert module._watch(on_meta, due=False) == {}
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        module._watch(on_meta, due=True)


def test_each_picture_of_a_look_is_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: Counter[int] = Counter()
    shown: Counter[tuple[str, int]] = Counter()
    to_png, log_png = drawing.to_png, RunTensorBoard.log_png

    def noted(figure: Any) -> bytes:
        drawn[len(shown)] += 1
        return to_png(figure)

    def noted_too(self: RunTensorBoard, tag: str, png: bytes, step: int) -> None:
        shown[tag, step] += 1
        log_png(self, tag, png, step)

    monkeypatch.setattr(drawing, "to_png", noted)
    monkeypatch.setattr(RunTensorBoard, "log_png", noted_too)
    monkeypatch.setattr(drawing, "CAN_FORK", False)
    train(tmp_path, "data.steps_per_epoch=4", "trainer.max_epochs=2", "data.val_examples=20")
    assert set(shown.values()) == {1}
    assert drawn.total() == len(shown)
    files = {path.stem for path in (tmp_path / "figures").glob("*.png")}
    assert files == {tag.replace("/", "_") for tag, _ in shown}
    assert {step for _, step in shown} == {0, 4, 8}


def test_weights_are_made_for_the_probe_and_never_in_a_training_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Counter[tuple[int, bool]] = Counter()
    mix = MultiHeadSelfAttention._attend_with_weights

    def noted(self: MultiHeadSelfAttention, q: torch.Tensor, *rest: Any) -> Any:
        mixed, weights = mix(self, q, *rest)
        made[len(q), torch.is_grad_enabled() or weights.requires_grad] += 1
        return mixed, weights

    monkeypatch.setattr(MultiHeadSelfAttention, "_attend_with_weights", noted)
    train(tmp_path, "data.steps_per_epoch=4", "trainer.max_epochs=2", "data.val_examples=200", "logger=none")
    # The map of one sequence and the roles over 16, at the start and after each epoch, without a gradient.
    assert made == {(1, False): 3, (16, False): 3}
