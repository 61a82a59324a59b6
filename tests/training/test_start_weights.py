"""``init_from``: a new run starts with the weights of another one, and with nothing else of it."""

import re
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml

from poslab.build import build_model, build_task
from poslab.comparison.axes import flat_settings, varying
from poslab.config.identity import job_key
from poslab.config.schema import TrainConfig, checked
from poslab.data.stream import BatchStream
from poslab.errors import ConfigError
from poslab.runs.result import stored_result
from poslab.training.learners import build_learner
from support.configs import compose, refusal
from support.one_model_runs import columns, weights
from support.runs import train
from support.stopping import TINY, stopped_at

QUIET = ("logger=none",)
NEW = (*TINY, *QUIET, "optimizer.lr=0.001", "trainer.max_steps=3", "trainer.log_every_n_steps=1")


@pytest.fixture(scope="module")
def source(finished_runs: Callable[..., Path]) -> Path:
    return finished_runs(*TINY, *QUIET)


@pytest.fixture(scope="module")
def bundle(finished_runs: Callable[..., Path]) -> Path:
    return finished_runs(*TINY, *QUIET, "seeds=2")


def job(*overrides: str) -> TrainConfig:
    return checked(compose(*TINY, *QUIET, *overrides))


def start_of(*overrides: str) -> list[dict[str, torch.Tensor]]:
    """The weights that the replicas of a job start with."""
    made = job(*overrides)
    learner = build_learner(made, build_task(made))
    return [
        {name: value.clone() for name, value in learner.model_of(index).state_dict().items()}
        for index in range(made.seeds)
    ]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_another_task_and_rate_start_at_step_0_with_these_weights_and_a_new_optimiser(
    source: Path, tmp_path: Path
) -> None:
    overrides = (*NEW, "task=reverse")
    train(tmp_path / "new", *overrides, f"init_from={source}")
    made = checked(compose(*overrides))
    model = build_model(made, build_task(made))
    model.load_state_dict(weights(source, "best"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, betas=(0.9, 0.999))
    batches, losses = BatchStream(build_task(made), 0, "train", 16, model.vocab_size), []
    for step in range(3):
        tokens, targets = batches.batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).transpose(1, 2), targets, ignore_index=-100)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert columns(tmp_path / "new")["train/loss"] == pytest.approx(dict(enumerate(losses)), rel=1e-5)


def test_on_the_same_task_it_starts_with_the_best_score_of_the_run(source: Path, tmp_path: Path) -> None:
    file = source / "checkpoints/best.ckpt"
    result = stored_result(train(tmp_path / "new", *NEW, f"init_from={source}"))
    assert result["metrics"]["start/val/loss"] == stored_result(source)["metrics"]["best/val/loss"]
    stored = yaml.safe_load((tmp_path / "new/config.yaml").read_text())
    assert stored["init_from"] == str(source)
    assert stored["init_from_sha256"] == sha256(file.read_bytes()).hexdigest()


def test_each_replica_takes_what_its_run_alone_would_take(source: Path, bundle: Path) -> None:
    first, second = (weights(bundle / f"copies/seed{seed}", "best") for seed in (0, 1))
    assert not same(first, second)
    for given, wanted in ((bundle, [first, second]), (source, [weights(source, "best")] * 2)):
        found = start_of(f"init_from={given}", "seeds=2")
        assert all(same(*pair) for pair in zip(found, wanted, strict=True))
        assert same(start_of(f"init_from={given}", "seed=1")[0], wanted[1])
    keys = [job(f"init_from={bundle}", f"seed={seed}").init_from_sha256 for seed in (0, 1)]
    # The seeds of one source are seeds of one setting.
    assert keys[0] == keys[1]


def test_the_checksum_is_part_of_the_key_and_the_place_is_not(source: Path, bundle: Path, tmp_path: Path) -> None:
    shutil.copy(source / "checkpoints/best.ckpt", tmp_path / "kept.ckpt")
    of_run, of_copy, of_other, without = (
        job_key(job(*more))
        for more in (
            [f"init_from={source}"],
            [f"init_from={tmp_path / 'kept.ckpt'}"],
            [f"init_from={bundle / 'copies/seed1'}"],
            [],
        )
    )
    assert of_run == of_copy
    assert len({of_run, of_other, without}) == 3


def test_a_comparison_names_the_source(source: Path, bundle: Path) -> None:
    configs: list[Any] = [
        {"init_from": "/there/A", "init_from_sha256": "0123456789abcdef"},
        {"init_from": "/there/B", "init_from_sha256": "fedcba9876543210"},
        {"init_from": None, "init_from_sha256": None},
    ]
    settings = [flat_settings(config) for config in configs]
    assert settings == [{"init_from": "A 01234567"}, {"init_from": "B fedcba98"}, {}]
    assert varying(settings) == ["init_from"]


def test_a_resume_notices_that_the_file_has_changed(
    source: Path, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, typed = tmp_path / "start.ckpt", (*NEW, f"init_from={tmp_path / 'start.ckpt'}")
    shutil.copy(source / "checkpoints/best.ckpt", file)
    whole = train(tmp_path / "whole", *typed)
    folder = stopped_at(tmp_path / "run", 2, monkeypatch, *typed, "trainer.checkpoint_every_n_steps=1")
    kept = file.read_bytes()
    file.write_bytes((bundle / "copies/seed1/checkpoints/best.ckpt").read_bytes())
    with pytest.raises(ConfigError, match=r"init_from_sha256 was [0-9a-f]{64} and is [0-9a-f]{64}"):
        train(folder, *typed, "resume=auto")
    stored = yaml.safe_load((folder / "config.yaml").read_text())["init_from_sha256"]
    with pytest.raises(ConfigError, match=r"start\.ckpt has changed: init_from_sha256 was [0-9a-f]{64} and is"):
        checked(compose(*typed, f"init_from_sha256={stored}"))
    file.write_bytes(kept)
    train(folder, *typed, "resume=auto")
    assert (folder / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()


def spoiled(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        content = torch.load(path, weights_only=True)
        change(content)
        torch.save(content, path)

    return spoil


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize(
    ("spoil", "overrides", "said"),
    [
        (Path.unlink, [], "does not exist; give the folder of a run"),
        (cut, [], r"cannot be read as a checkpoint of plain values \(BadZipFile\)"),
        (spoiled(lambda content: content["state_dict"]["model.head.weight"].fill_(torch.nan)), [], "holds NaN"),
        (None, ["task.n_symbols=20"], r"token_embedding\.embedding\.weight is \(65, 32\) there and \(21, 32\) here"),
        (None, ["model.d_model=16"], r"\(65, 32\) there and \(65, 16\) here; give the sizes"),
        (None, ["pos=none"], r"position\S* is \(12, 32\) there and missing here"),
        (None, ["model.n_heads=8"], r"model\.n_heads is 4 there and 8 here"),
        (None, ["model.tie_embeddings=true"], r"has two matrices where the model has one"),
        (None, ["ckpt_path=x.ckpt"], "give one of them"),
        (None, ["model.token_init=hashed"], "the token table comes from there"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_folder_is_made(
    spoil: Callable[[Path], None] | None, overrides: list[str], said: str, source: Path, tmp_path: Path
) -> None:
    file = Path(shutil.copy(source / "checkpoints/best.ckpt", tmp_path / "start.ckpt"))
    if spoil is not None:
        spoil(file)
    line = refusal(tmp_path / "run", *TINY, *overrides, f"init_from={file}")
    assert re.search(said, line), line
    assert "\n" not in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("place", "overrides", "said"),
    [
        (".", ["seeds=3"], "without a replica of seed 2; it has seed0, seed1"),
        ("checkpoints/best.ckpt", [], "holds several replicas"),
        ("checkpoints", [], "has no checkpoints/best.ckpt"),
        ("nothing", [], "does not exist"),
        ("x" * 300, [], "does not exist"),
    ],
)
def test_what_is_no_source_is_refused(
    place: str, overrides: list[str], said: str, bundle: Path, tmp_path: Path
) -> None:
    assert said in refusal(tmp_path / "run", *TINY, *overrides, f"init_from={bundle / place}")
