"""What somebody else has written is data: nothing that is loaded can run code, in any of the places that load."""

import ast
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from harness import ROOT, RUN, Server

from support.commands import typed

QUIET = (*RUN, "logger=none", "diagnostics=none")
SOURCES = [*(ROOT / "src").rglob("*.py"), *ROOT.glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]


class MakesAFolder:
    """Unpickled, it makes a folder: what could be any command."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def calls() -> Iterator[tuple[Path, ast.Call, str]]:
    """Every call in the sources: where, which, and the name that is called."""
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield file, node, ast.unparse(node.func)


def test_every_load_is_of_plain_values() -> None:
    safe = 0
    for file, call, name in calls():
        options = {option.arg: ast.unparse(option.value) for option in call.keywords}
        where = f"{file.name}:{call.lineno}: {ast.unparse(call)}"
        if name == "torch.load" or (name.startswith("trainer.") and "ckpt_path" in options):
            assert options.get("weights_only") == "True", where
            safe += 1
        elif name == "np.load":
            assert options.get("allow_pickle", "False") == "False", where
        elif name == "yaml.load":
            assert (file.name, ast.unparse(call.args[1])) == ("reading.py", "PlainLoader"), where
        elif name in ("eval", "exec", "joblib.load", "cloudpickle.load", "cloudpickle.loads"):
            pytest.fail(where)
        elif name == "import_module":
            # Of the package's own classes, or names that stand in the sources; classes.py has refused other packages.
            assert file.name in ("__init__.py", "build.py", "classes.py", "pool.py"), where
        elif name in ("pickle.load", "pickle.loads"):
            # What this very process, or its own forked child, has written where no other can.
            assert file.name in ("composing.py", "drawing.py", "pool.py"), where
        assert not name.endswith("load_from_checkpoint"), f"{where} imports what a checkpoint names"
    assert safe >= 4
    from poslab.system.reading import PlainLoader

    assert PlainLoader.__base__.__name__ in ("CSafeLoader", "SafeLoader")


@pytest.fixture(scope="module")
def run(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its first epoch."""
    folder = tmp_path_factory.mktemp("safe")
    kill = {"kill_at": {"point": "step before", "number": 9}}
    assert server.start(folder, *QUIET, "hydra.run.dir=run", faults=kill).code == -9
    return folder / "run"


def tampered(run: Path, to: Path, part: str, value: Any) -> Path:
    """A copy of the run, in both of whose checkpoints one part is another."""
    shutil.copytree(run, to)
    for path in (to / "checkpoints").iterdir():
        content = torch.load(path, weights_only=True)
        torch.save(content | {part: value}, path)
    return to


@pytest.mark.parametrize(
    "part",
    ["state_dict", *(pytest.param(part, marks=pytest.mark.faults) for part in ("hyper_parameters", "loops", "poslab"))],
)
@pytest.mark.parametrize("place", ["resume", "ckpt_path", "init_from", "evaluate", "generate"])
def test_a_tampered_checkpoint_runs_nothing(part: str, place: str, run: Path, server: Server, tmp_path: Path) -> None:
    there = tampered(run, tmp_path / "run", part, MakesAFolder(tmp_path / "made"))
    checkpoint = there / "checkpoints/last.ckpt"
    if place in ("evaluate", "generate"):
        ended = server.start(tmp_path, "run=run", script=f"{place}.py")
    elif place in ("ckpt_path", "init_from"):
        ended = server.start(tmp_path, *QUIET, f"{place}={checkpoint}", "hydra.run.dir=new")
    else:
        ended = server.start(tmp_path, *QUIET, "resume=auto", "hydra.run.dir=run")
    assert not (tmp_path / "made").exists()
    assert "weights_only" not in ended.out + ended.err
    if place == "resume":
        assert ended.code == 0
        assert "last.ckpt cannot be read (UnpicklingError)" in ended.out
        assert "resume=auto found no checkpoint" in ended.out
        return
    (line,) = ended.err.splitlines()
    assert line.startswith("error: ")
    assert "last.ckpt cannot be read" in line
    assert ended.code == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "place", ["evaluate", *(pytest.param(one, marks=pytest.mark.faults) for one in ("resume", "ckpt_path"))]
)
def test_a_name_in_a_checkpoint_is_not_imported(place: str, run: Path, server: Server, tmp_path: Path) -> None:
    """Lightning before 2.6.6 could be made to, by a hyperparameter that is a plain text."""
    (tmp_path / "trap.py").write_text("import os\nos.mkdir('made')\ndef spring(*a, **k): os.mkdir('sprung')\n")
    there = tampered(
        run, tmp_path / "run", "hyper_parameters", {"_instantiator": "trap.spring", "_class_path": "trap.x"}
    )
    arguments = {
        "resume": ["train.py", *QUIET, "resume=auto", "hydra.run.dir=run"],
        "ckpt_path": ["train.py", *QUIET, f"ckpt_path={there / 'checkpoints/last.ckpt'}", "hydra.run.dir=new"],
        "evaluate": ["evaluate.py", "run=run"],
    }
    script, *typed = arguments[place]
    ended = server.start(tmp_path, *typed, script=script, faults={"import_from": {"folder": str(tmp_path)}})
    assert (ended.code, ended.err) == (0, "")
    assert not {"made", "sprung"} & {path.name for path in tmp_path.iterdir()}


STRANGE = {
    "of the system": ("task", "os.system"),
    "of a module that acts when it is imported": ("task", "trap.Task"),
    "of another package": ("pos", "torch.load"),
    "almost of the package": ("pos", "poslab_evil.positions.Learned"),
    "of the package, another kind": ("task", "poslab.system.files.write_atomically"),
    "through the package": ("task", "poslab.system.files.os.system"),
    "of the package, a program": ("task", "poslab.comparison.__main__.main"),
}


@pytest.mark.parametrize("what", [*STRANGE])
@pytest.mark.parametrize(
    "script", ["evaluate.py", *(pytest.param(one, marks=pytest.mark.faults) for one in ("generate.py", "train.py"))]
)
def test_a_class_that_a_stored_configuration_names_is_one_of_the_packages_own(
    what: str, script: str, run: Path, server: Server, tmp_path: Path
) -> None:
    key, target = STRANGE[what]
    shutil.copytree(run, tmp_path / "run")
    file = tmp_path / "run/config.yaml"
    settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    settings[key] = {"_target_": target, "command": f"mkdir {tmp_path / 'made'}"}
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    (tmp_path / "trap.py").write_text("import os\nos.mkdir('made')\n")
    typed = (*QUIET, "resume=auto", "hydra.run.dir=run") if script == "train.py" else ("run=run",)
    ended = server.start(tmp_path, *typed, script=script, faults={"import_from": {"folder": str(tmp_path)}})
    assert ended.code == 1
    (line,) = ended.err.splitlines()
    assert line.startswith("error: ")
    assert f"{key}._target_" in line
    assert target in line
    assert not (tmp_path / "made").exists()


@pytest.mark.faults
def test_a_foreign_checkpoint_is_refused_by_both_values(run: Path, server: Server, tmp_path: Path) -> None:
    checkpoint = run / "checkpoints/last.ckpt"
    for change, said in {
        "task.n_symbols=12": "task.n_symbols was 10 and is 12",
        "model.d_model=32": "model.d_model was 16 and is 32",
        "pos=none": "pos._target_ was poslab.positions.learned",
    }.items():
        typed = [*QUIET, change, f"ckpt_path={checkpoint}", "hydra.run.dir=new"]
        ended = server.start(tmp_path, *typed)
        assert ended.code == 1
        (line,) = ended.err.splitlines()
        assert said in line, line
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_shown_to_the_network_and_no_home_is_named(server: Server, tmp_path: Path) -> None:
    """TensorBoard has no password: whoever can reach it reads the runs and their settings."""
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "conf").rglob("*.yaml"), *SOURCES]
    for file in texts:
        text = file.read_text(encoding="utf-8")
        assert not any(word in text for word in ("--bind_all", "--bind-all", "0.0.0.0", "--host")), file
    rows = tmp_path / "home/me/rows.pt"
    rows.parent.mkdir(parents=True)
    torch.save(torch.zeros(11, 16), rows)
    ended = server.start(
        tmp_path,
        *(*RUN, "diagnostics=none", "trainer.max_epochs=1", "hydra.run.dir=run"),
        *("model.token_init=file", f"model.token_file={rows}"),
        environment={"HOME": str(rows.parent)},
    )
    assert (ended.code, ended.err) == (0, "")
    (events,) = (tmp_path / "run").glob("events*")
    content = events.read_bytes()
    assert b"~/rows.pt" in content
    assert str(rows.parent).encode() not in content


def test_a_pickle_that_hydra_would_rerun_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "job.pickle", "wb") as file:
        pickle.dump(MakesAFolder(tmp_path / "ran"), file)
    said = typed(tmp_path, f"--experimental-rerun={tmp_path / 'job.pickle'}")
    assert "error: --experimental-rerun reads a pickle" in str(said)
    assert not (tmp_path / "ran").exists()
