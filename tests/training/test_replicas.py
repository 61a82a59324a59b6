"""``seeds=N``: every copy is the run it would have been alone, whatever happens to the others."""

import csv
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

from poslab.build import build_model, build_task
from poslab.comparison.collect import collect
from poslab.comparison.settings import by_setting
from poslab.config.identity import identity, job_key
from poslab.config.registration import run_name
from poslab.config.schema import checked
from poslab.data.module import SeedData
from poslab.errors import ConfigError, DivergedError
from poslab.evaluation.metrics import score_all, token_loss
from poslab.positions.base import PositionScheme
from poslab.preflight.checks import preflight
from poslab.runs.result import stored_result
from poslab.sweeps.plan import Job
from poslab.sweeps.sweep import Sweep, checked_job
from poslab.trained import load
from poslab.training import stack as stack_module
from poslab.training.learners import build_learner
from poslab.training.module import ALGORITHMS
from poslab.training.stack import ModelStack, clip_gradients, gradient_norms, losses
from support.configs import compose
from support.paths import CONF
from support.runs import train

SCHEMES = sorted(path.stem for path in (CONF / "pos").glob("*.yaml"))
MODELS = {
    "attention": ("model.d_model=16", "model.n_heads=2"),
    "transformer": ("model=transformer", "model.d_model=16", "model.n_heads=2", "model.n_layers=2"),
}
TINY = ("data.batch_size=4", "data.steps_per_epoch=6", "data.val_examples=10", "trainer.max_epochs=2")
QUIET = ("diagnostics=none", "logger=none", "trainer.log_every_n_steps=1")
RANDOM_ROWS = ("model.max_context_length=30", "task.min_length=2")
DECAYED = ("optimizer=adamw", "optimizer.weight_decay=0.1", "trainer.gradient_clip_norm=0.2")


def rows_of(table: Path) -> list[dict[str, str]]:
    with open(table, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def rows(folder: Path) -> list[dict[str, float]]:
    return [{name: float(value) for name, value in row.items() if value} for row in rows_of(folder / "metrics.csv")]


def weights(folder: Path, name: str = "last") -> dict[str, Tensor]:
    return torch.load(folder / f"checkpoints/{name}.ckpt", weights_only=True)["state_dict"]


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


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with everything on, as a job of a sweep, and its copies alone beside it."""
    from poslab.experiment.run import run

    folder = tmp_path_factory.mktemp("whole")
    typed = (
        *TINY,
        "task.min_length=2",
        "pos=learned",
        "diagnostics.lengths.lengths=[6,40]",
        "diagnostics.heads.every=1",
    )
    for name, more in (("bundle", ("seed=3", "seeds=3")), *((f"alone{n}", (f"seed={n}",)) for n in (3, 4, 5))):
        run(compose(*typed, *more), folder / name, (*typed, *more))
    return folder


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_with_every_diagnostic_as_alone(whole: Path, seed: int) -> None:
    copy, alone = whole / f"bundle/copies/seed{seed}", whole / f"alone{seed}"
    assert_same_run(copy, alone)
    assert stored_result(copy)["overrides"] == stored_result(alone)["overrides"]
    assert "length/40" in stored_result(copy)["out_of_reach"]
    assert any(name.startswith("head_roles/") for name in stored_result(copy)["metrics"])
    # Pictures of the first copy only.
    pictures = {path.name for path in (copy / "figures").glob("*.png")}
    assert pictures == ({path.name for path in (alone / "figures").glob("*.png")} if seed == 3 else set())
    assert not (whole / "bundle/figures").exists()


def test_the_bundle_has_the_means(whole: Path) -> None:
    copies = [rows(whole / f"bundle/copies/seed{seed}") for seed in (3, 4, 5)]
    for mean, *own in zip(rows(whole / "bundle"), *copies, strict=True):
        assert mean == pytest.approx({name: np.mean([row[name] for row in own]) for name in own[0]})
    result = stored_result(whole / "bundle")
    each = [stored_result(whole / f"bundle/copies/seed{seed}")["metrics"] for seed in (3, 4, 5)]
    wanted = {name: np.mean([metrics[name] for metrics in each]) for name in each[0]}
    assert result["metrics"] == pytest.approx(wanted | {"copies/completed": 3})
    assert (result["status"], result["error"], result["seed"]) == ("completed", None, 3)
    assert result["parameters"] == stored_result(whole / "alone3")["parameters"]


def test_tensorboard_shows_the_mean_and_every_copy(whole: Path) -> None:
    def events(folder: Path) -> EventAccumulator:
        (file,) = folder.glob("events.out.tfevents.*")
        accumulator = EventAccumulator(str(file))
        accumulator.Reload()
        return accumulator

    own = {seed: events(whole / f"bundle/copies/seed{seed}") for seed in (3, 4, 5)}
    mean = events(whole / "bundle")
    alone = events(whole / "alone3")
    assert set(mean.Tags()["scalars"]) == set(own[4].Tags()["scalars"]) == set(alone.Tags()["scalars"])
    assert own[3].Tags()["images"] == alone.Tags()["images"]
    assert own[4].Tags()["images"] == []
    for tag in ("train/loss", "val/loss", "val/exact_match", "learning_rate", "neighbour_similarity/offset_1"):
        curves = [[(event.step, event.value) for event in each.Scalars(tag)] for each in (mean, *own.values())]
        assert [step for step, _ in curves[0]] == [step for step, _ in curves[1]]
        np.testing.assert_allclose(
            [v for _, v in curves[0]], np.mean([[v for _, v in c] for c in curves[1:]], axis=0), rtol=1e-5
        )


@pytest.mark.parametrize("checkpoint", ["last", "best"])
def test_a_copy_loads_as_a_run(whole: Path, checkpoint: str) -> None:
    copy = whole / "bundle/copies/seed4"
    job, task, model = load(copy, checkpoint)
    assert (job.seed, job.seeds) == (4, 1)
    data = SeedData(task, job.data, 4, model.vocab_size)
    means = score_all(model, data.validation.batches).means()
    metrics = stored_result(copy)["metrics"]
    name = "val/loss" if checkpoint == "last" else "best/val/loss"
    assert means["loss"] == pytest.approx(metrics[name], rel=1e-5)


def test_the_comparison_takes_the_copies(whole: Path) -> None:
    jobs = {job.name: job for job in collect([whole])}
    assert {name for name, job in jobs.items() if "/" in name} == {f"bundle/seed{seed}" for seed in (3, 4, 5)}
    bundled = [jobs[f"bundle/seed{seed}"] for seed in (3, 4, 5)]
    alone = [jobs[f"alone{seed}"] for seed in (3, 4, 5)]
    assert [job.settings for job in bundled] == [job.settings for job in alone]
    settings = [by_setting(each, ["seed"]) for each in (bundled, alone)]
    assert [len(one) for one in settings] == [1, 1]
    assert len(settings[0][0].jobs) == 3
    assert settings[0][0].accuracy == pytest.approx(settings[1][0].accuracy)
    assert {job.name for job in collect([whole / "bundle"])} == {f"bundle/seed{seed}" for seed in (3, 4, 5)}


# A copy that diverges.


def lose(monkeypatch: pytest.MonkeyPatch, copies: tuple[int, ...], update: int) -> None:
    """These copies' losses become NaN in the given update (from 0), and their gradients with them."""
    calls = iter(range(10**6))

    def faulty(logits: Tensor, targets: Tensor) -> Tensor:
        by_copy = losses(logits, targets)
        factors = torch.ones(len(by_copy))
        if next(calls) >= update:
            factors[list(copies)] = float("nan")
        return by_copy * factors

    monkeypatch.setattr(stack_module, "losses", faulty)


def test_a_diverging_copy_stays_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (*TINY, *DECAYED, "logger=none", "trainer.log_every_n_steps=1", "seeds=3")
    undisturbed = train(tmp_path / "undisturbed", *options)
    until_then = train(tmp_path / "until_then", *options, "trainer.max_steps=7")
    lose(monkeypatch, (1,), 7)
    with pytest.raises(DivergedError, match=r"1 of 3 replicas diverged; seed 1: train/loss is nan at step 7"):
        train(tmp_path / "bundle", *options)
    bundle = tmp_path / "bundle"
    for seed in (0, 2):
        copies = [folder / f"copies/seed{seed}" for folder in (bundle, undisturbed)]
        assert (copies[0] / "metrics.csv").read_bytes() == (copies[1] / "metrics.csv").read_bytes()
        for name in ("last", "best"):
            one, two = (weights(copy, name) for copy in copies)
            assert all(torch.equal(one[key], two[key]) for key in one)
        assert stored_result(copies[0])["status"] == "completed"
    lost = stored_result(bundle / "copies/seed1")
    assert lost["status"] == "diverged"
    assert lost["error"].startswith("DivergedError: train/loss is nan at step 7")
    assert max(row["step"] for row in rows(bundle / "copies/seed1")) == 6
    # Its parameters are those after seven updates, to the end.
    now, then = weights(bundle), weights(until_then)
    assert all(torch.equal(now[name][1], then[name][1]) for name in now)
    result = stored_result(bundle)
    assert result["status"] == "completed"
    assert result["metrics"]["copies/completed"] == 2
    well = [stored_result(bundle / f"copies/seed{seed}")["metrics"]["val/loss"] for seed in (0, 2)]
    assert result["metrics"]["val/loss"] == pytest.approx(np.mean(well))
    assert all(np.isfinite(list(row.values())).all() for row in rows(bundle))


@pytest.mark.parametrize("lost", [False, True])
def test_a_sweep_with_a_lost_copy_ends_as_one_with_a_lost_job(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: bool
) -> None:
    shutil.copytree(whole / "bundle", tmp_path / "sweep/bundle")
    if lost:
        result = stored_result(whole / "bundle") | {"error": "1 of 3 replicas diverged; seed 4: train/loss is nan"}
        (tmp_path / "sweep/bundle/result.json").write_text(json.dumps(result))
    sweep = Sweep.__new__(Sweep)
    sweep.folder, sweep.jobs, sweep.invalid = tmp_path / "sweep", {"key": Job(["seeds=3"], name="bundle")}, []
    with caplog.at_level("INFO"):
        assert sweep.conclude() is not lost
    assert ("1 of 3 replicas diverged" in caplog.text) is lost
    assert len(rows_of(tmp_path / "sweep/comparison.csv")) == 3


def test_without_a_copy_left_the_run_has_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lose(monkeypatch, (0, 1), 3)
    with pytest.raises(DivergedError, match="all 2 replicas have diverged"):
        train(tmp_path / "bundle", *TINY, *QUIET, "seeds=2")
    assert stored_result(tmp_path / "bundle")["status"] == "diverged"
    for seed in (0, 1):
        assert stored_result(tmp_path / f"bundle/copies/seed{seed}")["status"] == "diverged"


def test_a_real_divergence_ends_as_alone(tmp_path: Path) -> None:
    options = (*TINY, *QUIET, "optimizer.lr=1e19")
    with pytest.raises(DivergedError):
        train(tmp_path / "bundle", *options, "seeds=2")
    with pytest.raises(DivergedError):
        train(tmp_path / "alone", *options, "seed=1")
    copy, alone = (stored_result(folder) for folder in (tmp_path / "bundle/copies/seed1", tmp_path / "alone"))
    assert (copy["status"], copy["error"]) == (alone["status"], alone["error"])


# Going on.


def interrupted_at(monkeypatch: pytest.MonkeyPatch, update: int) -> None:
    real, calls = stack_module.losses, iter(range(update))

    def interrupt(*arguments: Tensor) -> Tensor:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(stack_module, "losses", interrupt)


@pytest.mark.parametrize("update", [3, 14])
def test_resume_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: int) -> None:
    options = (
        *TINY,
        *RANDOM_ROWS,
        "pos.train_offset=random",
        "trainer.max_epochs=3",
        "optimizer.decay=cosine",
        "seeds=2",
    )
    undisturbed = train(tmp_path / "undisturbed", *options)
    folder = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        interrupted_at(patch, update)
        with pytest.raises(SystemExit):
            train(folder, *options)
    copies = [folder / f"copies/seed{seed}" for seed in (0, 1)]
    assert [stored_result(each)["status"] for each in (folder, *copies)] == ["interrupted"] * 3
    with pytest.raises(ConfigError, match=r"seed1 is one replica of the run in .*stopped; resume that one"):
        train(copies[1], *options[:-1], "seed=1", "resume=auto")
    train(folder, *options, "resume=auto")
    for part in (".", "copies/seed0", "copies/seed1"):
        assert stored_result(folder / part)["status"] == "completed"
        assert (folder / part / "metrics.csv").read_bytes() == (undisturbed / part / "metrics.csv").read_bytes()
        one, two = (weights(run / part) for run in (folder, undisturbed))
        assert all(torch.equal(one[name], two[name]) for name in one)
    assert (
        stored_result(folder / "copies/seed1")["batches_by_length"]
        == stored_result(undisturbed / "copies/seed1")["batches_by_length"]
    )
    pictures = [run / "copies/seed0/figures/neighbour_similarity_curve.png" for run in (folder, undisturbed)]
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


def test_a_lost_copy_stays_lost_when_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (*TINY, *QUIET, *DECAYED, "trainer.max_epochs=3", "seeds=2")
    with monkeypatch.context() as patch:
        lose(patch, (0,), 4)
        with pytest.raises(DivergedError):
            train(tmp_path / "undisturbed", *options)
    with monkeypatch.context() as patch:
        lose(patch, (0,), 4)
        interrupted_at(patch, 9)
        with pytest.raises(SystemExit):
            train(tmp_path / "stopped", *options)
    with pytest.raises(DivergedError, match="seed 0: train/loss is nan at step 4"):
        train(tmp_path / "stopped", *options, "resume=auto")
    one, two = (weights(tmp_path / run) for run in ("stopped", "undisturbed"))
    assert all(torch.equal(one[name], two[name]) for name in one)


# What is refused, and what stays as it was.


class Noisy(PositionScheme):
    """Draws where nobody can draw for it."""

    def embed(self, seq_len: int, start: int = 0) -> Tensor:
        return torch.rand(seq_len, 32)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("seeds=0",), "seeds=0 must be at least 1"),
        (("seeds=2", "model.dropout=0.1"), r"seeds=2 with model.dropout=0.1: .*use -m seed=0,1,\.\.\. instead"),
        (("seeds=2", "trainer=ddp"), "seeds=2 with trainer=ddp: replicas are trained on one device"),
        (("seeds=2", "trainer=fsdp"), "seeds=2 with trainer=fsdp: replicas are trained on one device"),
        (("seeds=3", "seed=4294967294"), r"seed=4294967294 with seeds=3 goes beyond 2\^32"),
        (("seeds=1000000000",), r"seeds=1000000000 at about \d+ MiB a replica does not fit the .* use at most \d+"),
    ],
)
def test_refusals(tmp_path: Path, overrides: tuple[str, ...], message: str) -> None:
    for refuse in (checked_job, lambda config: preflight(config, tmp_path / "run")):
        with pytest.raises(ConfigError, match=message) as refused:
            refuse(compose(*overrides))
        assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_scheme_that_draws_on_its_own_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("poslab.positions.none.NoPositions", Noisy)
    preflight(compose("pos=none"), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"seeds=2: these replicas cannot be trained together \(vmap.*\); use -m"):
        preflight(compose("pos=none", "seeds=2"), tmp_path / "run")


def test_copies_whose_buffers_differ_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Lucky(PositionScheme):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("drawn_once", torch.rand(3), persistent=False)

    monkeypatch.setattr("poslab.positions.none.NoPositions", Lucky)
    with pytest.raises(
        ConfigError, match=r"buffer embeddings.positional_embedding.drawn_once differs from seed to seed"
    ):
        preflight(compose("pos=none", "seeds=2"), tmp_path / "run")


def test_a_bundle_is_not_one_model(whole: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds 3 replicas; give one, for example run=.*copies.seed3"):
        load(whole / "bundle")


def test_a_single_seed_is_what_it_was(tmp_path: Path) -> None:
    one, two = (checked(compose(*typed)) for typed in ((), ("seeds=2",)))
    assert "seeds" not in identity(asdict(one))
    assert identity(asdict(two))["seeds"] == 2
    assert job_key(one) != job_key(two)
    old = {key: value for key, value in asdict(one).items() if key != "seeds"}
    assert identity(old) == identity(asdict(one))
    assert run_name("poslab.tasks.copy.CopyTask", "poslab.positions.rope.R", 32, 4, 0).startswith(
        "copy-rope-d32-h4-s0_"
    )
    assert run_name("poslab.tasks.copy.CopyTask", "poslab.positions.rope.R", 32, 4, 0, 8).startswith(
        "copy-rope-d32-h4-s0x8_"
    )
    folder = train(tmp_path / "run", *TINY, *QUIET, "trainer.max_steps=1")
    assert not (folder / "copies").exists()


def test_a_configuration_from_before_loads(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", *TINY, *QUIET, "trainer.max_steps=1")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config.pop("seeds") == 1
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert load(folder).job.seeds == 1
    (folder / "result.json").write_text(json.dumps(stored_result(folder) | {"status": "interrupted"}))
    train(folder, *TINY, *QUIET, "trainer.max_steps=1", "resume=auto")
    assert stored_result(folder)["status"] == "completed"


# The stack itself.


def small_stack(n: int = 3, *overrides: str) -> tuple[ModelStack, list[nn.Module], Tensor, Tensor]:
    job = checked(compose("model.d_model=8", "model.n_heads=2", f"seeds={n}", *overrides))
    task = build_task(job)
    alone = []
    for seed in range(n):
        torch.manual_seed(seed)
        alone.append(build_model(job, task))
    batches = [task.sample(np.random.default_rng(seed), 5) for seed in range(n)]
    tokens, targets = (torch.from_numpy(np.stack(parts)) for parts in zip(*batches, strict=True))
    stack = build_learner(job, task).module
    assert isinstance(stack, ModelStack)
    return stack, alone, tokens, targets


def test_gradients_norms_and_clipping_are_each_copy_s_own() -> None:
    stack, alone, tokens, targets = small_stack(3, "model.tie_embeddings=true")
    losses(stack(tokens, [12] * 3), targets).sum().backward()
    parameters = [*stack.parameters()]
    norms = gradient_norms(parameters)
    limit = float(norms.median())
    clip_gradients(parameters, norms, limit)
    for index, model in enumerate(alone):
        token_loss(model(tokens[index]), targets[index]).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
        assert float(norms[index]) == pytest.approx(float(norm), rel=1e-5)
        for own, one, view in zip(model.parameters(), parameters, stack.model_of(index).parameters(), strict=True):
            torch.testing.assert_close(one.grad[index], own.grad, rtol=1e-4, atol=1e-7)
            assert torch.equal(view, one[index])
            assert torch.equal(view.grad, one.grad[index])


def test_no_copy_feels_another() -> None:
    stack, _, tokens, targets = small_stack()
    losses(stack(tokens, [12] * 3), targets)[1].backward()
    for parameter in stack.parameters():
        assert not parameter.grad[[0, 2]].any()
        assert parameter.grad[1].any()


def test_torch_s_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    stack, *_ = small_stack(2, "pos.train_offset=random", "model.max_context_length=40")
    torch.set_rng_state(before)
    assert stack.training
    first, second = (stack(torch.zeros(2, 1, 12, dtype=torch.int64), [12, 9]) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first, second)


def test_a_diagnostic_that_fails_in_one_copy_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Any, model: nn.Module, probe: Any) -> None:
        raise RuntimeError("cannot look")

    monkeypatch.setattr("poslab.diagnostics.neighbour_similarity.NeighbourSimilarity.look", fail)
    folder = train(tmp_path / "run", *TINY, "seeds=2")
    assert stored_result(folder)["status"] == "completed"
    assert "cannot look" in caplog.text
