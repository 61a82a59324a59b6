"""What ``evaluate.py`` and ``generate.py`` refuse in one line, and that they answer at once."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from poslab.system.shell import commands_for
from support.commands import watched
from support.paths import ROOT
from support.using_runs import ABLE, SMALL, lines_of, use


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
        (["good"], "'good' is not key=value"),
        (["run=good", "run=good"], "run is given twice"),
        (["run=good", "device=toaster"], "torch has no device=toaster"),
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
        (["run=good", "device=meta"], "torch has no device=meta"),
        (["run=odd"], "odd/config.yaml: .*os.system lies outside"),
        (["run=reading"], "reading/config.yaml: seed is not a plain value"),
        (["run=unknown"], "unknown/config.yaml: .*colour"),
        (
            ["run=foreign"],
            "foreign/checkpoints/last.ckpt does not belong to the run in foreign: Unexpected key.*embeddings",
        ),
        (
            ["run=tied"],
            "last.ckpt does not belong to the run in tied: embeddings.token_embedding.embedding.weight has other",
        ),
        (
            ["run=good", "checkpoint=larger_bare.ckpt"],
            r"larger_bare.ckpt does not belong to the run in good: size mismatch for .*weight.*\[21, 32\].*\[11, 32\]",
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
        ("generate.py", ["prompt=1", "2", "3"], "'2' is not key=value; put double quotes around a value with spaces"),
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
        ("evaluate.py", ["lengths=3,x"], "lengths=3,x must be whole numbers separated by commas"),
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


@pytest.mark.process
@pytest.mark.parametrize("script", ["evaluate.py", "generate.py"])
@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("rum=x", 1), ("run=x", 1)])
def test_a_quick_question_is_answered_at_once(script: str, argument: str, code: int, tmp_path: Path) -> None:
    best = float("inf")
    for _ in range(3):
        child, seconds = watched(script, argument, cwd=tmp_path)
        best = min(best, seconds)
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
