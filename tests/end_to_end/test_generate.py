"""``generate.py``: a finished run writes, and its answers are judged."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.using_runs import ABLE, SMALL, lines_of, use


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
