"""Training: every number is what an independent loop computes, a run is its seed's, and a broken one stops."""

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import poslab.training.learner
import poslab.training.module
from poslab.build import build_model, build_task
from poslab.config.schema import TrainConfig, checked
from poslab.data.module import SeedData
from poslab.data.stream import BatchStream
from poslab.errors import DivergedError
from poslab.evaluation.metrics import Score, score, token_loss
from poslab.runs.folder import RunFolder
from poslab.runs.table import MetricsTable
from poslab.training.learners import build_learner
from poslab.training.module import TrainingModule
from poslab.training.replicas import Replica, Replicas
from poslab.training.schedule import LearningRateFactor
from support.configs import compose
from support.runs import train

SMALL = ("data.steps_per_epoch=20", "data.val_examples=50", "data.val_batch_size=32", "trainer.max_epochs=2")
SHORT = (*SMALL, "trainer.max_epochs=1", "trainer.log_every_n_steps=1", "model.dropout=0.2")
QUIET = ("diagnostics=none", "logger=none")
LOSSES = ("train/loss", "train/loss_epoch", "val/loss", "val/accuracy", "val/exact_match", "train/gradient_norm")


def columns(folder: Path) -> dict[str, dict[int, float]]:
    """metrics.csv as column -> step -> value."""
    found: dict[str, dict[int, float]] = {}
    with open(folder / "metrics.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if name != "step" and value:
                    found.setdefault(name, {})[int(row["step"])] = float(value)
    return found


def result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def checkpoint(folder: Path, name: str) -> dict:
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)


def weights(folder: Path, name: str = "last") -> dict[str, torch.Tensor]:
    return {key.removeprefix("model."): value for key, value in checkpoint(folder, name)["state_dict"].items()}


# -- against a loop of its own ------------------------------------------------------------------------------------


def adam(parameters: list) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.005, betas=(0.9, 0.999))


def adam_with_decay(parameters: list) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.02, betas=(0.8, 0.9), weight_decay=0.1)


def adamw(parameters: list) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, betas=(0.9, 0.95), weight_decay=0.3)


def constant(step: int) -> float:
    return 1.0


def warm_then_cosine(step: int) -> float:
    return (step + 1) / 6 if step < 5 else 0.5 * (1 + math.cos(math.pi * (step - 5) / 35))


def warm_then_linear(step: int) -> float:
    return (step + 1) / 11 if step < 10 else 1 - (step - 10) / 30


LOOPS = {
    "defaults": ("", adam, constant, None),
    "adam, decay, clip": (
        "task=repeat optimizer.lr=0.02 optimizer.betas=[0.8,0.9] optimizer.weight_decay=0.1 "
        "trainer.gradient_clip_norm=0.1",
        adam_with_decay,
        constant,
        0.1,
    ),
    "adamw, cosine, clip": (
        "optimizer=adamw optimizer.lr=0.01 optimizer.betas=[0.9,0.95] optimizer.weight_decay=0.3 "
        "optimizer.warmup_steps=5 optimizer.decay=cosine trainer.gradient_clip_norm=0.05",
        adamw,
        warm_then_cosine,
        0.05,
    ),
    "adam, linear": ("optimizer.warmup_steps=10 optimizer.decay=linear", adam, warm_then_linear, None),
}


@pytest.mark.parametrize(("changed", "make", "factor", "clip"), LOOPS.values(), ids=LOOPS)
def test_a_run_is_what_a_plain_loop_computes(
    changed: str,
    make: Callable[[list], torch.optim.Optimizer],
    factor: Callable[[int], float],
    clip: float | None,
    tmp_path: Path,
):
    overrides = (*changed.split(), *SMALL, *QUIET, "seed=5", "trainer.log_every_n_steps=1")
    train(tmp_path, *overrides)

    job = checked(compose(*overrides))
    task = build_task(job)
    torch.manual_seed(5)
    model = build_model(job, task)
    optimizer = make(list(model.parameters()))
    full_rate = optimizer.param_groups[0]["lr"]
    batches = BatchStream(task, 5, "train", 16, model.vocab_size)
    losses, norms, rates = [], [], []
    for step in range(40):
        tokens, targets = batches.batch(step)
        optimizer.param_groups[0]["lr"] = full_rate * factor(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).transpose(1, 2), targets, ignore_index=-100)
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip or 1e9).item())
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()

    wanted = model.state_dict()
    for name, value in weights(tmp_path).items():
        if name.endswith("qkv_proj.bias"):
            # A bias of the keys moves no weight of the softmax: its gradient is rounding, which Adam blows up.
            value, wanted[name] = (part.view(3, -1)[[0, 2]] for part in (value, wanted[name]))
        torch.testing.assert_close(value, wanted[name], rtol=1e-3, atol=1e-4)
    logged = columns(tmp_path)
    assert logged["train/loss"] == pytest.approx(dict(enumerate(losses)), rel=1e-4)
    assert logged["train/gradient_norm"] == pytest.approx(dict(enumerate(norms)), rel=1e-3)
    assert logged["learning_rate"] == pytest.approx(dict(enumerate(rates)), rel=1e-6)
    assert logged["train/loss_epoch"] == pytest.approx({20: sum(losses[:20]) / 20, 40: sum(losses[20:]) / 20}, rel=1e-4)

    tokens, targets = (torch.cat(parts) for parts in zip(*SeedData(task, job.data, 5, 65).validation, strict=True))
    with torch.no_grad():
        logits = model(tokens)
    counted = targets != -100
    right = logits.argmax(-1) == targets
    scores = {
        "val/loss": F.cross_entropy(logits[counted], targets[counted]).item(),
        "val/accuracy": right[counted].float().mean().item(),
        "val/exact_match": (right | ~counted).all(1).float().mean().item(),
    }
    assert len(tokens) == 50
    assert {name: logged[name][40] for name in scores} == pytest.approx(scores, rel=1e-4)


def test_the_numbers_at_a_step_describe_the_model_after_so_many_updates(tmp_path: Path):
    # One update more changes the weights, so a shift by one would show.
    train(tmp_path, *SMALL, *QUIET, "trainer.log_every_n_steps=1")
    job = checked(compose(*SMALL))
    torch.manual_seed(0)
    model = build_model(job, build_task(job))
    tokens, targets = BatchStream(build_task(job), 0, "train", 16, 65).batch(0)
    logged = columns(tmp_path)
    assert logged["train/loss"][0] == pytest.approx(token_loss(model(tokens), targets).item(), rel=1e-5)
    assert set(logged["train/loss"]) == set(range(40))
    assert set(logged["val/loss"]) == {0, 20, 40}
    assert checkpoint(tmp_path, "last")["global_step"] == 40


# -- the schedule -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("warmup", "decay", "total", "wanted"),
    [
        (0, "none", 4, [1, 1, 1, 1, 1, 1]),
        (3, "none", 4, [1 / 4, 2 / 4, 3 / 4, 1, 1, 1]),
        (0, "linear", 4, [1, 3 / 4, 2 / 4, 1 / 4, 0, 0]),
        (2, "linear", 6, [1 / 3, 2 / 3, 1, 3 / 4, 2 / 4, 1 / 4, 0, 0]),
        (0, "cosine", 2, [1, 1 / 2, 0, 0]),
        (1, "cosine", 5, [1 / 2, 1, (1 + math.sqrt(0.5)) / 2, 1 / 2, (1 - math.sqrt(0.5)) / 2, 0]),
        (5, "linear", 3, [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1]),
    ],
)
def test_the_rate_by_hand(warmup: int, decay: str, total: int, wanted: list[float]):
    factor = LearningRateFactor(warmup, decay, total)
    assert [factor(step) for step in range(len(wanted))] == pytest.approx(wanted, abs=1e-12)


def a_module(job: TrainConfig, folder: Path) -> TrainingModule:
    only = Replica(job=job, overrides=[], folder=RunFolder(folder), table=MetricsTable(folder), board=None)
    return TrainingModule(build_learner(job, build_task(job)), Replicas([only], only), job.optimizer, 10)


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_the_named_algorithm_is_used_with_its_values(name: str, kind: type, tmp_path: Path):
    job = checked(compose(f"optimizer={name}", "optimizer.lr=0.3", "optimizer.betas=[0.1,0.2]"))
    module = a_module(job, tmp_path)
    optimizer = module.configure_optimizers()
    assert type(optimizer) is kind  # in torch an AdamW is an Adam
    (group,) = optimizer.param_groups
    assert (group["lr"], group["betas"]) == (0.3, (0.1, 0.2))
    assert group["weight_decay"] == job.optimizer.weight_decay == {"adam": 0.0, "adamw": 0.01}[name]
    assert {id(p) for p in group["params"]} == {id(p) for p in module.model.parameters()}


@pytest.mark.parametrize(("clip", "largest"), [("0.01", 0.01), ("null", None)])
def test_gradients_are_clipped_where_asked(
    clip: str, largest: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    norms = []

    class Watched(torch.optim.Adam):
        def step(self, closure: Callable) -> float:
            loss = super().step(closure)
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in self.param_groups[0]["params"]]).item())
            return loss

    monkeypatch.setitem(poslab.training.module.ALGORITHMS, "adam", Watched)
    train(tmp_path, *SMALL, *QUIET, f"trainer.gradient_clip_norm={clip}", "trainer.max_steps=5")
    assert len(norms) == 5
    if largest is None:
        assert min(norms) > 0.05
    else:
        assert norms == pytest.approx([largest] * 5, rel=1e-3)
        # The norm that is logged is the one before clipping: it tells how much was cut.
        assert columns(tmp_path)["train/gradient_norm"][0] > 0.05


# -- steps and epochs ---------------------------------------------------------------------------------------------


def test_the_default_run_logs_at_optimiser_updates(finished_runs: Callable[..., Path]):
    logged = columns(finished_runs())
    every_ten = list(range(0, 360, 10))
    assert list(logged["train/loss"]) == list(logged["learning_rate"]) == every_ten
    for name in ("val/loss", "val/accuracy", "val/exact_match"):
        assert list(logged[name]) == [0, 120, 240, 360]
    assert list(logged["train/loss_epoch"]) == [120, 240, 360]


def test_the_default_run_learns_to_copy(finished_runs: Callable[..., Path]):
    losses = list(columns(finished_runs())["train/loss_epoch"].values())
    assert math.log(65) > losses[0] > 3
    assert losses[2] < 0.05
    assert result(finished_runs())["metrics"]["val/exact_match"] > 0.95
    assert result(finished_runs())["metrics"]["start/val/loss"] == pytest.approx(math.log(65), abs=0.1)


@pytest.mark.parametrize(
    ("max_steps", "max_epochs", "validated"),
    [(30, 9, [0, 20, 30]), (40, 9, [0, 20, 40]), (7, 9, [0, 7]), (50, 1, [0, 20, 40, 50]), (-1, 2, [0, 20, 40])],
)
def test_a_limit_of_steps_validates_and_saves_where_it_ends(
    max_steps: int, max_epochs: int, validated: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "poslab")
    train(tmp_path, *SMALL, *QUIET, f"trainer.max_steps={max_steps}", f"trainer.max_epochs={max_epochs}")
    assert list(columns(tmp_path)["val/loss"]) == validated
    assert checkpoint(tmp_path, "last")["global_step"] == validated[-1]
    assert weights(tmp_path, "best").keys() == weights(tmp_path).keys()
    assert result(tmp_path)["status"] == "completed"
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("epoch ")]
    assert len(lines) == len(validated) - 1
    assert f"step {validated[-1]} of {validated[-1]}:" in lines[-1]


def test_the_last_checkpoint_is_of_the_last_step_even_when_it_is_not_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # The loss is at its best where no other number is at its highest or lowest.
    scripted = iter([(5.0, 0.2), (1.0, 0.5), (2.0, 0.9), (3.0, 0.1)])

    def rising(logits: torch.Tensor, targets: torch.Tensor) -> Score:
        real = score(logits, targets)
        loss, accuracy = next(scripted)
        right = (real.tokens * accuracy).long()
        return real._replace(loss_sum=real.tokens.double() * loss, tokens_right=right)

    monkeypatch.setattr(poslab.training.learner, "score", rising)
    train(tmp_path, *SMALL, *QUIET, "data.val_batch_size=50", "trainer.max_epochs=3")
    assert columns(tmp_path)["val/loss"] == {0: 5.0, 20: 1.0, 40: 2.0, 60: 3.0}
    assert checkpoint(tmp_path, "best")["global_step"] == 20
    assert checkpoint(tmp_path, "last")["global_step"] == 60
    metrics = result(tmp_path)["metrics"]
    assert (metrics["best/val/loss"], metrics["val/loss"], metrics["start/val/loss"]) == (1.0, 3.0, 5.0)


# -- the same run again -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with everything that draws random numbers: dropout and every diagnostic."""
    return train(tmp_path_factory.mktemp("short"), *SHORT)


def test_the_same_seed_gives_the_same_table(short: Path, tmp_path: Path):
    torch.rand(1000)
    train(tmp_path, *SHORT)
    assert (tmp_path / "metrics.csv").read_bytes() == (short / "metrics.csv").read_bytes()


def test_another_seed_gives_other_numbers(short: Path, tmp_path: Path):
    train(tmp_path, *SHORT, *QUIET, "seed=1")
    one, other = columns(short), columns(tmp_path)
    for name in ("train/loss", "val/loss"):
        assert all(one[name][step] != other[name][step] for step in one[name])


@pytest.mark.parametrize(
    "overrides",
    [QUIET, ("diagnostics=none",), ("diagnostics=heads",), (*QUIET, "data.num_workers=1"), (*QUIET, "trainer=cpu")],
    ids=" ".join,
)
def test_looking_does_not_change_the_run(overrides: tuple[str, ...], short: Path, tmp_path: Path):
    train(tmp_path, *SHORT, *overrides)
    one, other = columns(short), columns(tmp_path)
    assert {name: one[name] for name in LOSSES} == {name: other[name] for name in LOSSES}
    for name, value in weights(tmp_path).items():
        assert torch.equal(value, weights(short)[name])


def test_dropout_is_really_on_while_training_and_off_while_validating(short: Path, tmp_path: Path):
    train(tmp_path, *SHORT, *QUIET, "model.dropout=0")
    with_dropout, without = columns(short), columns(tmp_path)
    assert with_dropout["train/loss"][0] != without["train/loss"][0]
    assert with_dropout["val/loss"][0] == without["val/loss"][0]


def test_without_a_dashboard_the_files_are_there_all_the_same(short: Path, tmp_path: Path):
    train(tmp_path, *SHORT, "logger=none")
    assert (tmp_path / "metrics.csv").read_bytes() == (short / "metrics.csv").read_bytes()
    assert result(tmp_path)["status"] == "completed"
    assert "val/loss" in columns(tmp_path)
    assert {path.name for path in (tmp_path / "figures").iterdir()} >= {"heads_layer_0.png", "positions_table.png"}
    assert not list(tmp_path.glob("events.out.tfevents.*"))


@pytest.mark.parametrize("logger", ["none", "tensorboard"])
def test_pictures_and_numbers_are_kept_with_and_without_a_dashboard(logger: str, tmp_path: Path):
    train(tmp_path, *SMALL, "trainer.max_steps=2", "trainer.log_every_n_steps=1", f"logger={logger}")
    assert (tmp_path / "figures" / "heads_layer_0.png").stat().st_size > 1000
    assert {"train/loss", "val/loss", "parameters/total"} <= columns(tmp_path).keys()
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == (logger == "tensorboard")


def test_bf16_trains_close_to_fp32(tmp_path: Path):
    for precision in ("32", "bf16"):
        train(tmp_path / precision, *SMALL, *QUIET, f"trainer.precision={precision}", "trainer.log_every_n_steps=1")
    full, half = columns(tmp_path / "32"), columns(tmp_path / "bf16")
    for name in ("train/loss", "val/loss"):
        assert all(math.isfinite(value) for value in half[name].values())
        assert half[name] == pytest.approx(full[name], abs=0.05)
        assert half[name] != full[name], "bf16 was not used"
    assert {value.dtype for value in weights(tmp_path / "bf16").values()} == {torch.float32}


# -- a run that breaks --------------------------------------------------------------------------------------------


def broken_from(step: int, value: float) -> Callable[..., torch.Tensor]:
    """`token_loss`, but from ``step`` on it is ``value``."""
    calls = iter(range(1_000_000))

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return token_loss(logits, targets) if next(calls) < step else logits.sum() * 0 + value

    return loss


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_run_that_diverges_stops_and_keeps_its_best(value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(poslab.training.learner, "token_loss", broken_from(25, value))
    with pytest.raises(DivergedError, match=rf"train/loss is {value} at step 25: .*optimizer\.lr"):
        train(tmp_path, *SMALL, "diagnostics=none")
    found = result(tmp_path)
    assert found["status"] == "diverged"
    assert f"train/loss is {value} at step 25" in found["error"]
    assert all(math.isfinite(number) for number in found["metrics"].values())
    assert found["metrics"]["val/loss"] > 0
    for name in ("best", "last"):
        assert checkpoint(tmp_path, name)["global_step"] == 20
        assert all(torch.isfinite(tensor).all() for tensor in weights(tmp_path, name).values())
    assert set(columns(tmp_path)["val/loss"]) == {0, 20}


def test_a_run_that_diverges_at_once_saves_nothing_as_its_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(poslab.training.learner, "token_loss", broken_from(0, math.nan))
    with pytest.raises(DivergedError, match="step 0"):
        train(tmp_path, *SMALL, *QUIET)
    assert result(tmp_path)["status"] == "diverged"
    assert not list(tmp_path.rglob("*.ckpt"))


def test_a_validation_that_is_no_number_never_becomes_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls = iter(range(100))

    def nan_at_the_third(logits: torch.Tensor, targets: torch.Tensor) -> Score:
        real = score(logits, targets)
        return real._replace(loss_sum=real.loss_sum * math.nan) if next(calls) == 2 else real

    monkeypatch.setattr(poslab.training.learner, "score", nan_at_the_third)
    with pytest.raises(DivergedError, match="val/loss is nan at step 40"):
        train(tmp_path, *SMALL, *QUIET, "data.val_batch_size=50", "trainer.max_epochs=5")
    assert result(tmp_path)["status"] == "diverged"
    assert checkpoint(tmp_path, "best")["global_step"] == 20


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_only_finite_losses_leave_a_replica_active(value: float, tmp_path: Path):
    job = checked(compose(*SMALL))
    module = a_module(job, tmp_path)
    module._trainer = SimpleNamespace(global_step=3)  # type: ignore[assignment]
    module._freeze("val/loss", [1e30])
    assert module.replicas.active() == [0]
    with pytest.raises(DivergedError, match=r"val/loss is .* at step 3"):
        module._freeze("val/loss", [value])


def test_a_failure_in_training_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of\n memory")

    monkeypatch.setattr(poslab.training.learner, "token_loss", fail)
    with pytest.raises(RuntimeError, match="memory"):
        train(tmp_path, *SMALL, "diagnostics=none")
    found = result(tmp_path)
    assert (found["status"], found["error"]) == ("failed", "RuntimeError: out of memory")
    assert found["parameters"]["total"] == 8833
    assert found["metrics"]["start/val/loss"] > 4
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1
