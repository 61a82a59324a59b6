"""Every error becomes one line, and near keys are suggested."""

from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from hydra.errors import HydraException

from poslab.cli.explain import explain
from poslab.config.schema import checked
from poslab.errors import ConfigError, DivergedError
from support.commands import typed
from support.configs import compose
from support.devices import no_device
from support.paths import CONF


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["pos=sinusoidal", "pos.bas=3"], ["'pos.bas'", "'pos.base'"]),
        (["pos=sinusoidal", "+pos.bas=3"], ["'pos.bas'", "'pos.base'"]),
        (["task=repeat", "task.seq_lenn=4"], ["'task.seq_lenn'", "'task.seq_len'"]),
        (["diagnostics=heads", "diagnostics.heads.evry=2"], ["evry", "'diagnostics.heads.every'"]),
        (["hydra.run.dri=x"], ["hydra.run.dri"]),
        (["--config-name", "trian"], ["trian"]),
        (["--config-dir", "nowhere"], ["nowhere", "not found"]),
        (["seed=0,1"], ["seed=0,1", "-m"]),
        (["~model.d_model"], ["model.d_model"]),
        (["model.d_model=???"], ["model.d_model"]),
        (["model.d_model"], ["'model.d_model' sets nothing", "key=value"]),
        (["learned"], ["'learned' sets nothing", "key=value"]),
        (["~pos"], ["no value for pos", "key=value", "--help"]),
        (["~task"], ["no value for task", "key=value", "--help"]),
        (["seed=null"], ["seed=null: this setting needs a value; leave it out to keep its default"]),
        (["data=null"], ["data=null: this setting needs a value"]),
        (["trainer.devices=auto"], ["trainer.devices=auto is not a whole number, such as 1"]),
        (["model.n_heads=4.5"], ["model.n_heads=4.5 is not a whole number"]),
        (["optimizer.lr=fast"], ["optimizer.lr=fast is not a number, such as 0.1"]),
        (["compile=maybe"], ["compile=maybe is neither true nor false"]),
        (["optimizer.betas=3"], ["optimizer.betas is a list; write optimizer.betas=[..]"]),
        (["logger=5"], ["logger=5 chooses nothing; choices: none, tensorboard"]),
        (["pos=null"], ["pos=null chooses nothing", "learned, ", "none, ", "rope, ", "sinusoidal"]),
        (["-m", "diagnostics=none,null"], ["diagnostics=null chooses nothing", "heads", "position_table"]),
        (["diagnostics=[heads,foo]"], ["diagnostics=foo", "heads", "position_table"]),
        (["--seed", "1"], ["unrecognized arguments: --seed", "--help"]),
        (["pos=none", "-m", "seed=1"], ["unrecognized arguments: seed=1", "together"]),
        (["--cfg"], ["--cfg", "expected one argument"]),
        (["hydra.run.dir=é"], ["hydra.run.dir", "é", "quotes"]),
        (["hydra.run.dir='\udcff'"], ["hydra.run.dir", "\\udcff", "not UTF-8"]),
        (["model.token_init='a\x1b[31m\nb'"], ["model.token_init=a\\x1b[31m b"]),
        (["two\nlines"], ["'two lines' sets nothing"]),
        ([f"seed={'9' * 5000}"], ["seed", "5000 digits"]),
        ([f"model.token_init={'x' * 5000}"], ["model.token_init=xxx", "xxx ... xxx", "choose one of normal"]),
        (["hydra.run.dir=" + "x" * 300], ["cannot write to xxx", "too long", "hydra.run.dir="]),
        (["-m", "hydra.sweep.dir=" + "x" * 300], ["cannot write to xxx", "too long", "hydra.sweep.dir="]),
        (["hydra.output_subdir=''"], ["hydra.output_subdir=", "not a folder inside"]),
        (["-m", "hydra.output_subdir=../x", "seed=0,1"], ["hydra.output_subdir=../x", "not a folder inside"]),
        (["hydra.job.name=a/b"], ["hydra.job.name=a/b", "without a slash"]),
        (["hydra.job.chdir=${seed}"], ["hydra.job.chdir", "seed"]),
        (["hydra.verbose=3"], ["Hydra", "AssertionError"]),
        (["diagnostics=[[],heads]"], ["Hydra", "TypeError"]),
        (["hydra.sweeper.params={seed:'0,1'}"], ["hydra.sweeper.params"]),
        (["-m", "seed=0,1", "hydra.sweeper.max_batch_size=1"], ["unknown key 'hydra.sweeper.max_batch_size'"]),
    ],
    ids=lambda value: ascii(" ".join(value))[:60] if isinstance(value, list) else None,
)
def test_what_a_person_may_mistype(arguments: list[str], parts: list[str], tmp_path: Path):
    said = typed(tmp_path, *arguments)
    assert isinstance(said, str)
    assert said.startswith("error: ")
    assert "\n" not in said
    assert all(part in said for part in parts), said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["pos=sinusoidal", "pos.init_std=0.1"], ["task=repeat", "task.length=4"]])
def test_a_key_is_never_suggested_for_itself(arguments: list[str], tmp_path: Path):
    key = arguments[1].partition("=")[0]
    said = typed(tmp_path, *arguments)
    assert f"unknown key '{key}'" in said
    assert f"did you mean '{key}'" not in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["+pos.foo=1"],
        ["pos._target_=poslab.tasks.copy.CopyTask"],
        ["pos=sinusoidal", "model.d_model=33", "model.n_heads=3"],
        ["model.token_init=file", "model.token_file=none.npy"],
        ["diagnostics.heads.every=-1"],
        ["trainer=gpu"],
    ],
    ids=" ".join,
)
def test_a_refusal_that_needs_torch_leaves_nothing_either(arguments: list[str], tmp_path: Path):
    no_device(patch := pytest.MonkeyPatch())
    try:
        assert str(typed(tmp_path, *arguments)).startswith("error: ")
    finally:
        patch.undo()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "defaults: [schema, _self_]\n"], ids=["handmade", "old"])
def test_a_configuration_that_says_nothing_of_hydra_is_checked_too(content: str, tmp_path: Path):
    """Without the callback in it, Hydra would make a folder and the run would fail in there."""
    settings = yaml.safe_dump(asdict(checked(compose())), sort_keys=False)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own.yaml").write_text(content + settings, encoding="utf-8")
    said = typed(tmp_path, "--config-dir", "own", "--config-name", "own", "model.n_heads=5")
    assert str(said).startswith("error: model.d_model=32 cannot be split into model.n_heads=5")
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConfigError("a=1 is\n   wrong"), "a=1 is wrong"),
        (DivergedError("train/loss is nan"), "train/loss is nan"),
        (ValueError("d_model 3"), "d_model 3"),
        (
            MemoryError("Unable to allocate 4 GiB"),
            "out of memory (Unable to allocate 4 GiB); "
            "use a smaller data.batch_size, data.val_batch_size, model or task.length, or free some: what was saved is "
            "kept, and the same command with resume=auto and hydra.run.dir=<its folder> resumes the run",
        ),
        (RuntimeError("boom\nbang"), "RuntimeError: boom bang (POSLAB_DEBUG=1 shows the traceback)"),
        (ValueError(), "ValueError: (POSLAB_DEBUG=1 shows the traceback)"),
        (HydraException("one\ntwo\nSee https://hydra.cc/x"), "one two"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_any_error_becomes_one_line(error: Exception, line: str):
    assert " ".join(explain(error, CONF).split()) == line
    assert "\n" not in explain(error, CONF)
