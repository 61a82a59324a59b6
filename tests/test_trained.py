"""Using what a run has learned: rebuilt from its folder alone, scored as the run scored it, and asked to write."""

import contextlib
import csv
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import ROOT, train
from test_cli import WATCHED, seconds_of_children

from poslab.errors import ConfigError
from poslab.system.shell import commands_for
from poslab.tasks.copy import CopyTask
from poslab.trained import load

SMALL = (
    *("task.n_symbols=10", "task.length=3", "data.steps_per_epoch=4", "trainer.max_epochs=2", "data.val_examples=50"),
    *("diagnostics=none", "logger=none", "trainer=cpu", "data.val_batch_size=16"),
)
# Enough for the copy, in a second.
ABLE = (*SMALL, "data.steps_per_epoch=150", "data.batch_size=32", "optimizer.lr=0.01")


def use(script: str, folder: Path, *arguments: str) -> Any:
    """``python SCRIPT`` with these arguments in ``folder``, in this process: what it gives `sys.exit`, or None."""
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        patch.setattr(sys, "argv", [script, *arguments])
        patch.setenv("HYDRA_FULL_ERROR", "0")  # the program sets it: put it back afterwards
        try:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as end:
            return end.code
    return None


def scores(run: Path, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """What ``evaluate.py`` leaves in its file."""
    assert use("evaluate.py", tmp_path, f"run={run}", *arguments, "output=found.json") is None
    return json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))


def recorded(run: Path) -> dict[str, float]:
    return json.loads((run / "result.json").read_text(encoding="utf-8"))["metrics"]


def lines_of(text: str) -> dict[str, str]:
    """The lines of ``generate.py`` by their first word."""
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in text.splitlines()}


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    np.save(path, np.random.default_rng(0).normal(size=(11, 32)).astype(np.float32))
    return path


# The same numbers.

CONFIGURATIONS = {
    "default": (),
    "deep": ("model=transformer", "pos=rope", "model.n_layers=3", "optimizer=adamw", "optimizer.warmup_steps=2"),
    "tied": ("model.tie_embeddings=true", "pos=sinusoidal"),
    "hashed": ("model.token_init=hashed", "pos=alibi", "model.vocab_size=40", "model.dropout=0.3"),
    "longer": ("pos.train_offset=random", "model.max_context_length=30", "task.min_length=1", "task.eos=true"),
    "bf16": ("trainer.precision=bf16", "pos=t5", "model=transformer"),
    "repeat": ("task=repeat", "pos=fire", "task.seq_len=5"),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_scores_are_exactly_those_of_the_run(
    name: str, finished_runs: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [one for one in SMALL if name != "repeat" or not one.startswith("task.length")]
    run = finished_runs(*CONFIGURATIONS[name], *small)
    moved = tmp_path / "another place" / "Läufe, it's $HOME"
    shutil.copytree(run, moved)
    found = scores(moved, tmp_path)
    expected = {key: value for key, value in recorded(run).items() if key.startswith("val/")}
    assert found["metrics"] == expected
    assert (found["step"], found["seed"], found["examples"]) == (8, 0, 50)
    assert f"{expected['val/loss']:.4f}" in capsys.readouterr().out


def test_a_set_whose_size_was_not_given_is_scored_again(
    finished_runs: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_runs(*SMALL, "data.val_examples=null")
    found = scores(run, tmp_path)
    assert found["examples"] == 512
    assert found["metrics"]["val/loss"] == recorded(run)["val/loss"]
    assert "examples  512 a row" in capsys.readouterr().out


def test_a_token_file_is_not_needed_any_more(token_file: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", *SMALL, "model.token_init=file", f"model.token_file={token_file}")
    token_file.unlink()
    assert scores(run, tmp_path)["metrics"]["val/loss"] == recorded(run)["val/loss"]


def test_best_and_last_are_two_checkpoints(finished_runs: Callable[..., Path], tmp_path: Path) -> None:
    run = finished_runs(*SMALL, "optimizer.lr=0.1", "trainer.max_epochs=4")
    with open(run / "metrics.csv", newline="", encoding="utf-8") as file:
        losses = {int(row["step"]): float(row["val/loss"]) for row in csv.DictReader(file) if row["val/loss"]}
    best, last = scores(run, tmp_path, "checkpoint=best"), scores(run, tmp_path, "checkpoint=last")
    assert best["step"] < last["step"] == 16
    assert best["metrics"]["val/loss"] == losses[best["step"]] == min(losses[step] for step in (4, 8, 12, 16))
    assert last["metrics"]["val/loss"] == losses[16]
    given = scores(run, tmp_path, f"checkpoint={run / 'checkpoints' / 'best.ckpt'}")
    assert given == best


def test_other_examples_and_other_lengths(
    finished_runs: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_runs(*ABLE)
    assert recorded(run)["val/exact_match"] == 1
    own, fresh = scores(run, tmp_path), scores(run, tmp_path, "seed=5", "examples=70", "lengths=2,3,4")
    assert fresh["examples"] == 70
    assert fresh["seed"] == 5
    assert fresh["metrics"]["val/loss"] != own["metrics"]["val/loss"]
    assert fresh["metrics"]["length/3/exact_match"] == fresh["metrics"]["val/exact_match"] == 1
    assert fresh["metrics"]["length/2/exact_match"] < 1
    assert "length/4/accuracy" not in fresh["metrics"]
    reason = fresh["out_of_reach"]["4"]
    assert "has 6 positions and cannot place 8 tokens" in reason
    assert reason in capsys.readouterr().out


def test_load_gives_job_task_and_model(finished_runs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished_runs(*ABLE)
    job, task, model = load(run)
    assert job.optimizer.lr == 0.01
    assert isinstance(task, CopyTask)
    assert not model.training
    with torch.no_grad():
        assert model(torch.tensor([[7, 3, 9, 10, 7, 3]]))[0, 3:].argmax(-1).tolist() == [7, 3, 9]
    (run.parent / "outputs" / "runs").mkdir(parents=True, exist_ok=True)
    for age, name in ((2, "older"), (1, "newer"), (3, "oldest")):
        copy = shutil.copytree(run, run.parent / "outputs" / "runs" / name, dirs_exist_ok=True)
        os.utime(copy / "config.yaml", times=(1e9 - age, 1e9 - age))
        (copy / "checkpoints" / "last.ckpt").unlink(missing_ok=True)
    monkeypatch.chdir(run.parent)
    with pytest.raises(ConfigError, match=r"newer has no checkpoint 'last'; there are: best"):
        load("latest")


# Writing.


def test_the_copy_is_written_and_judged(
    finished_runs: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_runs(*ABLE)
    for arguments in ((), ("cache=false",), ("checkpoint=best",), ("temperature=0.01", "top_k=3")):
        assert use("generate.py", tmp_path, f"run={run}", "prompt=7 3 9", *arguments) is None
        said = lines_of(capsys.readouterr().out)
        assert (said["prompt"], said["answer"]) == ("7 3 9 SEP", "7 3 9")
        assert said["right"] == "all 3 tokens"
        assert "note" not in said
    assert use("generate.py", tmp_path, f"run={run}", "prompt=7 3 9 SEP 7") is None
    assert lines_of(capsys.readouterr().out)["answer"] == "3 9"
    assert use("generate.py", tmp_path, f"run={run}", "seed=4") is None
    example = lines_of(capsys.readouterr().out)
    assert re.fullmatch(r"\d( \d){2} SEP", example["prompt"])
    assert example["answer"] + " SEP" == example["prompt"]
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_wrong_answer_is_called_wrong(
    finished_runs: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that learned next to nothing, of three symbols, is asked for two."""
    run = finished_runs(*SMALL)
    assert use("generate.py", tmp_path, f"run={run}", "prompt=4 7") is None
    said = lines_of(capsys.readouterr().out)
    right = sum(map(str.__eq__, said["answer"].split(), ("4", "7")))
    assert said["wrong"] == f"{right} of 2 tokens are right; the answer is 4 7"
    assert said["note"].endswith("T = 4 tokens, and training saw T = 6")


def test_a_scheme_without_an_end_writes_on_and_a_table_says_why_not(
    finished_runs: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endless, table = finished_runs(*SMALL, "pos=alibi", "task.eos=true"), finished_runs(*SMALL)
    five = "prompt=1 2 3 4 5"
    said = use("generate.py", tmp_path, f"run={endless}", five)
    assert re.search(r"need a context of 11 tokens, but the model has a context of 7\b.*longer context", said)
    assert use("generate.py", tmp_path, f"run={endless}", five, "context=11") is None
    said = lines_of(capsys.readouterr().out)
    assert len(said["answer"].split()) == 6
    said = use("generate.py", tmp_path, f"run={table}", five, "context=10")
    assert said == (
        "error: LearnedPositionalEmbedding has 6 positions and cannot place 10 tokens; "
        "it has to be trained with max_context_length 10 or more"
    )


def test_a_person_who_watches_sees_each_token_at_once(
    finished_runs: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    class Watched:
        def write(self, text: str) -> None:
            said.append(text)

        def flush(self) -> None:
            said.append("<flushed>")

    run = finished_runs(*ABLE)
    monkeypatch.setattr(sys, "stdout", Watched())
    assert use("generate.py", tmp_path, f"run={run}", "prompt=7 3 9") is None
    assert "answer <flushed> 7<flushed> 3<flushed> 9<flushed>" in "".join(said)


# What is refused, in one line.


@pytest.fixture(scope="module")
def runs(finished_runs: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with good runs and broken ones."""
    root = tmp_path_factory.mktemp("runs")
    good = finished_runs(*SMALL)
    broken = "young damaged pickled odd reading foreign unknown tied nan empty heads stepless"
    for name in ("good", *broken.split()):
        shutil.copytree(good, root / name)
    shutil.rmtree(root / "young" / "checkpoints")
    last = root / "damaged" / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:-2000])
    (root / "empty" / "checkpoints" / "last.ckpt").write_bytes(b"")
    content = torch.load(root / "good" / "checkpoints" / "last.ckpt", weights_only=True)
    torch.save(content | {"state_dict": Path("x")}, root / "pickled" / "checkpoints" / "last.ckpt")
    stepless = {key: value for key, value in content.items() if key != "global_step"}
    torch.save(stepless, root / "stepless" / "checkpoints" / "last.ckpt")
    nan = {name: value * torch.nan if "head.bias" in name else value for name, value in content["state_dict"].items()}
    torch.save(content | {"state_dict": nan}, root / "nan" / "checkpoints" / "last.ckpt")
    for name, changes in {
        "odd": {"task": {"_target_": "os.system"}},
        "reading": {"seed": "${oc.env:HOME}"},
        "foreign": {"pos": {"_target_": "poslab.positions.none.NoPositions"}},
        "unknown": {"colour": "red"},
    }.items():
        settings = yaml.safe_load((root / name / "config.yaml").read_text(encoding="utf-8"))
        (root / name / "config.yaml").write_text(yaml.safe_dump(settings | changes), encoding="utf-8")
    settings = yaml.safe_load((root / "tied" / "config.yaml").read_text(encoding="utf-8"))
    settings["model"]["tie_embeddings"] = True
    (root / "tied" / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    settings = yaml.safe_load((root / "heads" / "config.yaml").read_text(encoding="utf-8"))
    settings["model"]["n_heads"] = 2
    (root / "heads" / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    larger = finished_runs(*SMALL, "task.n_symbols=20")
    shutil.copy(larger / "checkpoints" / "last.ckpt", root / "larger.ckpt")
    shutil.copy(root / "larger.ckpt", root / "larger_bare.ckpt")
    # Without its settings a checkpoint is told by what it holds.
    for bare in (
        root / "foreign/checkpoints/last.ckpt",
        root / "tied/checkpoints/last.ckpt",
        root / "larger_bare.ckpt",
    ):
        content = torch.load(bare, weights_only=True)
        torch.save(content | {"poslab": {}}, bare)
    (root / "bare").mkdir()
    return root


@pytest.mark.parametrize("script", ["evaluate.py", "generate.py"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "run= is missing"),
        (["run="], "run= is empty"),
        (["run=goood"], "run=goood does not exist; did you mean good?"),
        (["run=nowhere/at/all"], "run=nowhere/at/all does not exist$"),
        (["run=bare"], "run=bare holds no run"),
        (["run=."], r"holds no run \(no config.yaml\); give one of its 13 runs: damaged, .*, \.\.\.$"),
        (["run=larger.ckpt"], "run=larger.ckpt is a file"),
        (["run=latest"], "outputs/runs holds no run"),
        (["rum=good"], "unknown key 'rum'; did you mean 'run'?"),
        (["good"], "'good' is no key=value"),
        (["run=good", "run=good"], "run is given twice"),
        (["run=good", "device=toaster"], "device=toaster is not there"),
        (["run=good", "checkpoint=first"], "checkpoint=first does not exist"),
        (["run=young"], r"young has no checkpoint \(status: completed\)"),
        (["run=damaged"], "damaged/checkpoints/last.ckpt cannot be read"),
        (["run=empty"], "empty/checkpoints/last.ckpt cannot be read"),
        (["run=pickled"], "pickled/checkpoints/last.ckpt cannot be read"),
        (["run=nan"], "nan/checkpoints/last.ckpt does not belong to the run in nan: head.bias holds numbers that are"),
        (["run=heads"], "in heads: it was trained with model.n_heads=4, and config.yaml says 2"),
        (
            ["run=good", "checkpoint=larger.ckpt"],
            "in good: it was trained with task.n_symbols=20, and .* 10",
        ),
        (["run=stepless"], "stepless/checkpoints/last.ckpt cannot be read"),
        (["run=good", "device=meta"], "device=meta is not there"),
        (["run=odd"], "odd/config.yaml: .*os.system lies outside"),
        (["run=reading"], "reading/config.yaml: seed is no plain value"),
        (["run=unknown"], "unknown/config.yaml: .*colour"),
        (["run=foreign"], "foreign/checkpoints/last.ckpt does not belong to the run in foreign: .* has no embeddings"),
        (
            ["run=tied"],
            "last.ckpt does not belong to the run in tied: embeddings.token_embedding.embedding.weight has other",
        ),
        (
            ["run=good", "checkpoint=larger_bare.ckpt"],
            r"larger_bare.ckpt does not belong to the run in good: .*weight is \(21, 32\) there and \(11, 32\) in",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_used_is_refused_in_one_line(script: str, arguments: list[str], said: str, runs: Path) -> None:
    line = use(script, runs, *arguments)
    assert re.search(said.replace("?", r"\?"), line), line
    assert line.startswith("error: ")
    assert "\n" not in line
    assert "weights_only" not in line


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        ("generate.py", ["prompt=1 2 99"], "'99' is not a token of this task; the tokens are: 0, 1, "),
        ("generate.py", ["prompt=1", "2", "3"], "'2' is no key=value; put double quotes around a value with spaces"),
        ("generate.py", ["prompt= "], "prompt= is empty"),
        ("generate.py", ["prompt=1 2 SEP 1 2"], "contains its whole answer"),
        ("generate.py", ["promt=1 2"], "unknown key 'promt'; did you mean 'prompt'"),
        ("generate.py", ["prompt=1 2 3", "max_new_tokens=4"], r"4 tokens and 4 new ones need a context of 7.* of 6"),
        ("generate.py", ["max_new_tokens=0"], "max_new_tokens=0 must be a whole number of at least 1"),
        ("generate.py", ["context=3"], "context=3 is below the model's context of 6; leave it out"),
        ("generate.py", ["context=4000000000"], "max_context_length 4000000000 must be at least 1 and at most 32768"),
        ("generate.py", ["top_k=3"], "top_k 3 .* needs a temperature above 0"),
        ("generate.py", ["seed=99999999999999999999999"], "seed=9+ must be a whole number of at least 0, at most"),
        ("generate.py", ["cache=maybe"], "cache=maybe must be true or false"),
        ("generate.py", ["temperature=nan"], "temperature=nan must be a number of at least 0"),
        ("evaluate.py", ["lengths=3,x"], "lengths=3,x must be whole numbers with commas between"),
        ("evaluate.py", ["examples=99999999999999"], "examples=9+ must be a whole number of at least 1, at most"),
        ("evaluate.py", ["examples=0"], "examples=0 must be a whole number of at least 1"),
        ("evaluate.py", ["output=good/config.yaml/x"], "output=good/config.yaml/x cannot be written"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(script: str, arguments: list[str], said: str, runs: Path) -> None:
    line = use(script, runs, "run=good", *arguments)
    assert re.search(said, line), line
    assert line.startswith("error: ")
    assert "\n" not in line


# As a person does it.


@pytest.mark.process
@pytest.mark.parametrize("script", ["evaluate.py", "generate.py"])
@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("rum=x", 1), ("run=x", 1)])
def test_a_quick_question_is_answered_at_once(script: str, argument: str, code: int, tmp_path: Path) -> None:
    best = float("inf")
    for _ in range(3):
        began = seconds_of_children()
        child = subprocess.run(
            [sys.executable, "-c", WATCHED, str(ROOT / script), argument],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        best = min(best, seconds_of_children() - began)
        assert child.returncode == code, child.stderr
        assert child.stderr.splitlines()[-1] == "no torch"
        if best < 1:
            break
    assert best < 1, f"took {best:.2f} s as the best of three"
    assert "Traceback" not in child.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
@pytest.mark.usefixtures("active_environment")
def test_the_printed_command_can_be_pasted_whatever_the_path(
    finished_runs: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(finished_runs(*ABLE), tmp_path / "it's mein Läuf, $HOME")
    monkeypatch.setattr(sys, "argv", [str(ROOT / "train.py")])
    monkeypatch.chdir(tmp_path.parent)
    evaluate, generate = commands_for(run)
    assert shlex.split(evaluate) == ["python", str(ROOT / "evaluate.py"), f"run={run}"]
    child = subprocess.run(
        ["sh", "-c", f'{generate} prompt="7 3 9"'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert lines_of(child.stdout)["answer"] == "7 3 9"
    assert child.stderr == ""
