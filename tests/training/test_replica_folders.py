"""The folders of a run with several replicas: means, TensorBoard, checkpoints, comparison."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from poslab.comparison.collect import collect
from poslab.comparison.settings import by_setting
from poslab.config.identity import identity, job_key
from poslab.config.registration import run_name
from poslab.config.schema import checked
from poslab.data.module import SeedData
from poslab.errors import ConfigError
from poslab.evaluation.metrics import score_all
from poslab.runs.result import stored_result
from poslab.trained import load
from support.configs import compose
from support.replica_runs import QUIET, TINY, rows
from support.runs import train


def test_the_bundle_has_the_means(three_seeds: Path) -> None:
    copies = [rows(three_seeds / f"bundle/copies/seed{seed}") for seed in (3, 4, 5)]
    for mean, *own in zip(rows(three_seeds / "bundle"), *copies, strict=True):
        assert mean == pytest.approx({name: np.mean([row[name] for row in own]) for name in own[0]})
    result = stored_result(three_seeds / "bundle")
    each = [stored_result(three_seeds / f"bundle/copies/seed{seed}")["metrics"] for seed in (3, 4, 5)]
    wanted = {name: np.mean([metrics[name] for metrics in each]) for name in each[0]}
    assert result["metrics"] == pytest.approx(wanted | {"copies/completed": 3})
    assert (result["status"], result["error"], result["seed"]) == ("completed", None, 3)
    assert result["parameters"] == stored_result(three_seeds / "alone3")["parameters"]


def test_tensorboard_shows_the_mean_and_every_copy(three_seeds: Path) -> None:
    def events(folder: Path) -> EventAccumulator:
        (file,) = folder.glob("events.out.tfevents.*")
        accumulator = EventAccumulator(str(file))
        accumulator.Reload()
        return accumulator

    own = {seed: events(three_seeds / f"bundle/copies/seed{seed}") for seed in (3, 4, 5)}
    mean = events(three_seeds / "bundle")
    alone = events(three_seeds / "alone3")
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
def test_a_copy_loads_as_a_run(three_seeds: Path, checkpoint: str) -> None:
    copy = three_seeds / "bundle/copies/seed4"
    job, task, model = load(copy, checkpoint)
    assert (job.seed, job.seeds) == (4, 1)
    data = SeedData(task, job.data, 4, model.vocab_size)
    means = score_all(model, data.validation.batches).means()
    metrics = stored_result(copy)["metrics"]
    name = "val/loss" if checkpoint == "last" else "best/val/loss"
    assert means["loss"] == pytest.approx(metrics[name], rel=1e-5)


def test_the_comparison_takes_the_copies(three_seeds: Path) -> None:
    jobs = {job.name: job for job in collect([three_seeds])}
    assert {name for name, job in jobs.items() if "/" in name} == {f"bundle/seed{seed}" for seed in (3, 4, 5)}
    bundled = [jobs[f"bundle/seed{seed}"] for seed in (3, 4, 5)]
    alone = [jobs[f"alone{seed}"] for seed in (3, 4, 5)]
    assert [job.settings for job in bundled] == [job.settings for job in alone]
    settings = [by_setting(each, ["seed"]) for each in (bundled, alone)]
    assert [len(one) for one in settings] == [1, 1]
    assert len(settings[0][0].jobs) == 3
    assert settings[0][0].accuracy == pytest.approx(settings[1][0].accuracy)
    assert {job.name for job in collect([three_seeds / "bundle"])} == {f"bundle/seed{seed}" for seed in (3, 4, 5)}


def test_a_bundle_is_not_one_model(three_seeds: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds 3 replicas; give one, for example run=.*copies.seed3"):
        load(three_seeds / "bundle")


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
