"""Every file in conf/ is found by itself: it composes, passes the checks, builds, and trains a few steps."""

import dataclasses
import inspect
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from omegaconf import OmegaConf

from poslab.build import build_model, build_task
from poslab.config import schema
from poslab.config.schema import checked
from poslab.diagnostics import Gallery, build_diagnostics
from poslab.experiment.record import RunRecord
from poslab.experiment.run import run
from poslab.experiment.trainer import build_trainer
from poslab.preflight.checks import preflight
from poslab.runs.folder import RunFolder
from poslab.runs.resume import Start
from support.commands import typed
from support.configs import CHOICES, compose
from support.paths import CONF

OWN = [f"{group}={choice}" for group, choice in CHOICES]
HYDRA_S = [
    f"{path.parent.relative_to(CONF).as_posix()}={path.stem}" for path in sorted((CONF / "hydra").rglob("*.yaml"))
]
CLOSED = {
    "model": schema.ModelConfig,
    "optimizer": schema.OptimizerConfig,
    "trainer": schema.TrainerConfig,
    "logger": schema.LoggerConfig,
}
QUICK = ("trainer.max_steps=2", "data.val_examples=8")


def content(path: Path) -> dict[str, Any]:
    """The settings of one file, with those of the files in the same group that it builds on."""
    own = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    result: dict[str, Any] = {}
    for parent in own.pop("defaults", []):
        if isinstance(parent, str) and parent != "_self_":
            result |= content(path.with_name(f"{parent}.yaml"))
    return result | own


def names(of: type) -> set[str]:
    return {field.name for field in dataclasses.fields(of)}


def test_every_group_is_found():
    groups = {group for group, _ in CHOICES}
    assert {"pos", "task", "model", "optimizer", "trainer", "diagnostics", "logger", "experiment"} <= groups
    assert len(OWN) >= 20


@pytest.mark.parametrize("override", OWN)
def test_a_choice_composes_builds_and_trains(override: str, tmp_path: Path):
    group = override.partition("=")[0]
    # An experiment sets options of its diagnostics, so it runs with them.
    loud = {"diagnostics": ("diagnostics", "experiment"), "logger": ("logger",)}
    quiet = [f"{part}=none" for part, groups in loud.items() if group not in groups]
    config = compose(override, *quiet, *QUICK)
    if "lengths" in config.diagnostics:
        config.diagnostics.lengths.n_examples = 8
    # The machine may have no GPU.
    job = checked(config) if override == "trainer=gpu" else preflight(config, tmp_path / "checked").job
    task = build_task(job)
    model = build_model(job, task)
    tokens = torch.from_numpy(task.sample(np.random.default_rng(0), 2).tokens)
    assert model(tokens).shape == (2, tokens.shape[1], model.vocab_size)
    gallery = Gallery()
    assert len(build_diagnostics(job.diagnostics, gallery)) == len(job.diagnostics)
    if override != "trainer=gpu":
        record = RunRecord(job, RunFolder(tmp_path), Start(), [], False, 0.0)
        record.open()
        trainer = build_trainer(job, record)
        assert trainer.max_epochs == 1, "the epoch in which the second and last step falls"
    if job.trainer.devices == 1 and override != "trainer=gpu":
        run(config, tmp_path / "run")
        assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}


@pytest.mark.parametrize("override", HYDRA_S or [pytest.param("", marks=pytest.mark.skip(reason="none yet"))])
def test_a_setting_of_hydra_composes(override: str):
    compose(override)


@pytest.mark.parametrize("pos", [choice for group, choice in CHOICES if group == "pos"])
@pytest.mark.parametrize("task", [choice for group, choice in CHOICES if group == "task"])
def test_every_scheme_goes_with_every_task(pos: str, task: str):
    # Either file fills a part of its own, so that Hydra need not compose every pair.
    config = compose(f"task={task}")
    config.pos = compose(f"pos={pos}").pos
    job = checked(config)
    built = build_task(job)
    assert build_model(job, built).max_context_length == built.seq_len


def test_the_default_job_is_the_lesson_s():
    job = checked(compose())
    assert job.seed == 0
    assert job.task["_target_"] == "poslab.tasks.copy.CopyTask"
    task = build_task(job)
    assert (task.vocab_size, task.seq_len) == (65, 12)
    assert (job.model.d_model, job.model.n_heads, job.model.n_layers) == (32, 4, 1)
    assert (job.model.vocab_size, job.model.max_context_length) == (None, None)
    assert (job.model.tie_embeddings, job.model.dropout, job.model.token_init_std) == (False, 0.0, 0.02)
    assert (job.data.batch_size, job.data.steps_per_epoch) == (16, 120)
    assert (job.optimizer.algorithm, job.optimizer.lr, job.optimizer.betas) == ("adam", 5e-3, [0.9, 0.999])
    assert (job.optimizer.weight_decay, job.optimizer.warmup_steps, job.optimizer.decay) == (0.0, 0, "none")
    assert (job.trainer.max_epochs, job.trainer.max_steps, job.trainer.precision) == (3, -1, "32")
    assert job.trainer.gradient_clip_norm is None


def test_the_lesson_s_experiment_repeats_with_sinusoidal_positions():
    job, default = checked(compose("experiment=lesson")), checked(compose())
    assert job.task["_target_"] == "poslab.tasks.repeat.RepeatTask"
    task = build_task(job)
    assert (task.vocab_size, task.seq_len, len(task.lengths)) == (64, 12, 1)
    assert job.pos["_target_"] == "poslab.positions.sinusoidal.SinusoidalPositionalEmbedding"
    assert dataclasses.replace(job, task=default.task, pos=default.pos) == default


@pytest.mark.parametrize(
    ("group", "path"),
    [(group, path) for group in CLOSED for path in sorted((CONF / group).glob("*.yaml"))],
    ids=lambda value: value.stem if isinstance(value, Path) else value,
)
def test_a_closed_file_gives_every_field_of_the_schema_and_no_other(group: str, path: Path):
    assert set(content(path)) == names(CLOSED[group])


def test_the_main_file_and_the_groups_give_every_field_of_the_schema():
    main = yaml.safe_load((CONF / "train.yaml").read_text(encoding="utf-8"))
    groups = {next(iter(entry)) for entry in main.pop("defaults") if isinstance(entry, dict)}
    own = {group for group in groups if not group.startswith("override ")} - {"experiment"}
    assert set(main) | own == names(schema.TrainConfig)
    assert set(main["data"]) == names(schema.DataConfig)
    assert OmegaConf.missing_keys(compose()) == set()


@pytest.mark.parametrize(
    ("group", "choice"), [(group, choice) for group, choice in CHOICES if group in ("pos", "task", "diagnostics")]
)
def test_an_open_file_gives_every_option_of_its_class(group: str, choice: str):
    """So that each can be given as key=value and is seen in --cfg job."""
    filled_in = {"max_context_length", "d_model", "n_heads", "d_head", "n_layers"}
    part = content(CONF / group / f"{choice}.yaml")
    for options in part.values() if group == "diagnostics" else [part]:
        module, _, name = options["_target_"].rpartition(".")
        parameters = inspect.signature(getattr(import_module(module), name)).parameters.values()
        wanted = {one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
        assert set(options) - {"_target_"} == wanted - filled_in


def test_a_run_s_own_configuration_makes_the_same_run_again(tmp_path: Path):
    changed = ("pos=sinusoidal", "model.n_heads=8", "seed=3", "model.dropout=0.1", "diagnostics=[heads,parameters]")
    assert typed(tmp_path, *changed, "trainer.max_steps=25", "data.val_examples=40", "hydra.run.dir=my run") is None
    first = tmp_path / "my run"
    (command,) = [
        line.removeprefix("#").strip()
        for line in (first / "config.yaml").read_text(encoding="utf-8").splitlines()
        if "--config-dir" in line
    ]
    assert "'" not in command, "single quotes are no quotes in Windows' cmd"
    program, *arguments = shlex.split(command)
    assert (program, arguments[0]) == ("python", "train.py")
    assert typed(tmp_path, *arguments[1:], "hydra.run.dir=again") is None
    for name in ("metrics.csv", "config.yaml"):
        one, again = (
            [line for line in (folder / name).read_text().splitlines() if not line.startswith("#")]
            for folder in (first, tmp_path / "again")
        )
        assert one == again
        assert len(one) > 4
