"""Values and commands can be pasted into a shell."""

import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from poslab.cli import console as cli
from poslab.experiment.report import final_report
from poslab.runs.folder import RunFolder
from poslab.runs.result import Result

AWKWARD = [
    "plain",
    "with space",
    "it's",
    "a=b,c",
    "back\\slash",
    "trailing\\",
    "q\\'uote",
    'dou"ble',
    "$HOME `x`!",
    "~x",
]


@pytest.mark.parametrize("value", AWKWARD)
def test_a_value_survives_the_override_grammar_and_the_shell(value: str):
    parser = OverridesParser.create()
    assert str(parser.parse_override(f"key={cli.quoted(value)}").value()) == value
    (word,) = shlex.split(cli.pasted("hydra.run.dir", Path(value)))
    assert str(parser.parse_override(word).value()) == value


def test_the_command_to_go_on_can_be_pasted_where_the_path_has_an_equals_sign(tmp_path: Path):
    folder = tmp_path / "epoch=1,step=2 it's"
    result = Result(status="interrupted", seed=0)
    (line,) = [line for line in final_report(result, RunFolder(folder), False).splitlines() if "go on" in line]
    *_, resume, where = shlex.split(line)
    parser = OverridesParser.create()
    assert parser.parse_override(resume).value() == "auto"
    assert parser.parse_override(where).value() == str(folder)
