"""Whatever is typed: it trains, or it is refused in one line, and nothing half-written is left behind.

`command_lines` makes the lines, `forking` runs them, `judging` says what is wrong with how they ended.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_lines import SMALL, train_lines, user_lines
from forking import CommandServer, Ended
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from judging import judge

from support.paths import ROOT
from support.runs import train

MANY = 1000
FEW = 25


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandServer]:
    server = CommandServer(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


def each_of(lines: st.SearchStrategy[list[str]], wanted: int, run: Callable[[list[str]], None]) -> None:
    """Run so many different lines, the same ones every time; a bad one does not keep the others from being run."""
    seen: set[tuple[str, ...]] = set()

    # hypothesis tries a line that was interesting again with small changes, and so some lines twice.
    @settings(
        max_examples=3 * wanted,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(lines)
    def one(words: list[str]) -> None:
        if len(seen) < wanted and tuple(words) not in seen:
            seen.add(tuple(words))
            run(words)

    one()
    assert len(seen) == wanted, f"only {len(seen)} different lines"


def outcome(server: CommandServer, words: list[str], folder: Path) -> tuple[str, str, Ended]:
    """Run a line in a new folder, which has a file that may be in the way, and judge it."""
    folder.mkdir()
    (folder / "file").write_text("in the way", encoding="utf-8")
    ended = server.run(words, folder)
    kind, wrong = judge(words, ended, folder)
    shutil.rmtree(folder)
    return kind, wrong, ended


def check_many(server: CommandServer, program: str, lines: st.SearchStrategy[list[str]], n: int, folder: Path) -> None:
    kinds: Counter[str] = Counter()
    bad: list[str] = []

    def run(words: list[str]) -> None:
        kind, wrong, ended = outcome(server, [program, *words], folder / "one")
        kinds[kind] += 1
        if wrong:
            bad.append(f"{words}: {wrong}\n{ended.stdout[-500:]}\n{ended.stderr[-1000:]}")

    each_of(lines, n, run)
    print(f"{program}: {n} lines, {dict(kinds.most_common())}, {len(bad)} bad")  # noqa: T201 - for pytest -s
    assert not bad, f"{len(bad)} of {n} lines:\n" + "\n\n".join(bad[:5])
    for kind in ("trained", "refused"):
        assert kinds[kind] > n / 20, f"these lines show little: {kinds}"


@pytest.fixture(scope="module")
def place_with_a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run in ``outputs/runs/one``, and things that are none."""
    place = tmp_path_factory.mktemp("place")
    train(place / "outputs" / "runs" / "one", *SMALL)
    (place / "file").write_text("in the way", encoding="utf-8")
    (place / "empty").mkdir()
    os.mkfifo(place / "pipe")
    (place / "bad.ckpt").write_bytes(b"no checkpoint")
    return place


@pytest.mark.parametrize(
    ("program", "n"),
    [
        ("train.py", FEW),
        pytest.param("train.py", MANY, marks=pytest.mark.faults),
    ],
)
def test_every_line_trains_or_is_refused_in_one_line(
    program: str, n: int, server: CommandServer, tmp_path: Path
) -> None:
    check_many(server, program, train_lines(), n, tmp_path)


@pytest.mark.parametrize("program", ["evaluate.py", "generate.py"])
@pytest.mark.parametrize("n", [6, pytest.param(MANY // 10, marks=pytest.mark.faults)])
def test_a_run_is_used_or_the_line_is_refused(
    program: str, n: int, server: CommandServer, place_with_a_run: Path
) -> None:
    before = sorted(path for path in place_with_a_run.rglob("*"))
    kinds: Counter[str] = Counter()
    bad: list[str] = []

    def run(words: list[str]) -> None:
        ended = server.run([program, *words], place_with_a_run)
        kind, wrong = judge([program, *words], ended, None)
        kinds[kind] += 1
        made = [path for path in place_with_a_run.rglob("*") if path not in before]
        if kind == "refused" and made:
            wrong = wrong or f"left behind: {made}"
        for path in sorted(made, reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        if wrong:
            bad.append(f"{words}: {wrong}\n{ended.stdout[-500:]}\n{ended.stderr[-1000:]}")

    each_of(user_lines(program), n, run)
    print(f"{program}: {n} lines, {dict(kinds.most_common())}, {len(bad)} bad")  # noqa: T201 - for pytest -s
    assert not bad, f"{len(bad)} of {n} lines:\n" + "\n\n".join(bad[:5])


AS_A_PROCESS = [
    ["pos=sinusoidal"],
    ["model.n_heads=5"],
    ["data.batch_size=10000000000000"],
    ["hydra.run.dir=é"],
    ["--seed", "1"],
]


@pytest.mark.process
@pytest.mark.faults
@pytest.mark.parametrize("words", AS_A_PROCESS, ids=" ".join)
def test_a_forked_child_says_what_a_process_of_its_own_says(
    words: list[str], server: CommandServer, tmp_path: Path
) -> None:
    """What the other tests here rest on."""
    typed = [*SMALL, "hydra.run.dir=run", *words]
    for name in ("forked", "own"):
        (tmp_path / name).mkdir()
    forked = server.run(["train.py", *typed], tmp_path / "forked")
    own = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *typed],
        cwd=tmp_path / "own",
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert forked.code == own.returncode
    # The memory that there is differs.
    assert re.sub("there are [^:;]*", "", forked.stderr) == re.sub("there are [^:;]*", "", own.stderr)
    assert [line[:6] for line in forked.stdout.splitlines()] == [line[:6] for line in own.stdout.splitlines()]
    assert sorted(path.name for path in (tmp_path / "forked").rglob("*")) == sorted(
        path.name for path in (tmp_path / "own").rglob("*")
    )


GOOD = Ended(code=1, stdout="", stderr="error: model.n_heads=5 is wrong\n", stopped=False, killed=False, seconds=0.1)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, ""),
        ({"stderr": "Traceback (most recent call last):\nerror: model.n_heads=5 is wrong"}, "noise"),
        ({"stderr": "FutureWarning: old\nerror: model.n_heads=5 is wrong"}, "noise"),
        ({"stderr": "error: model.n_heads=5\nis wrong"}, "2 lines"),
        ({"stderr": ""}, "0 lines"),
        ({"stderr": "error: \n"}, "does not say why"),
        ({"stderr": "error: " + "x" * 5000}, "characters"),
        ({"stderr": "error: KeyError: 'x' (POSLAB_DEBUG=1 shows the traceback)"}, "not for a person"),
        ({"code": 2}, "exit code 2"),
        ({"code": -11}, "exit code -11"),
        ({"stdout": "run failed"}, "inside the run"),
        ({"stopped": True, "code": 143}, "too long"),
        ({"killed": True}, "did not end"),
    ],
    ids=str,
)
def test_the_judge_finds_what_is_wrong(change: dict[str, object], wrong: str, tmp_path: Path) -> None:
    _, found = judge(["train.py", "model.n_heads=5"], Ended(**(vars(GOOD) | change)), tmp_path)  # type: ignore[arg-type]
    assert (wrong in found) if wrong else not found


def test_the_judge_finds_what_was_left_behind(tmp_path: Path) -> None:
    (tmp_path / "outputs").mkdir()
    assert judge(["train.py"], GOOD, tmp_path)[1] == "left behind: outputs"
    trained = Ended(code=0, stdout="run completed", stderr="", stopped=False, killed=False, seconds=0.1)
    assert judge(["train.py"], trained, tmp_path)[1] == "it left no run"
    (tmp_path / "outputs" / "config.yaml").write_text("# The whole resolved configuration", encoding="utf-8")
    assert judge(["train.py"], trained, tmp_path)[1] == "no status in outputs"
    (tmp_path / "outputs" / "result.json").write_text('{"status": "failed"}', encoding="utf-8")
    assert judge(["train.py"], trained, tmp_path)[1] == "status failed of one that trained"
    (tmp_path / "outputs" / "result.json").write_text('{"status": "completed"}', encoding="utf-8")
    assert judge(["train.py"], trained, tmp_path)[1] == ""
