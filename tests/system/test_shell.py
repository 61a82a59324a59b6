"""Commands can be pasted into a shell."""

import shlex
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser

from poslab.experiment.report import final_report
from poslab.runs.folder import RunFolder
from poslab.runs.result import Result


def test_the_command_to_go_on_can_be_pasted_where_the_path_has_an_equals_sign(tmp_path: Path):
    folder = tmp_path / "epoch=1,step=2 it's"
    result = Result(status="interrupted", seed=0)
    (line,) = [line for line in final_report(result, RunFolder(folder), False).splitlines() if "go on" in line]
    *_, resume, where = shlex.split(line)
    parser = OverridesParser.create()
    assert parser.parse_override(resume).value() == "auto"
    assert parser.parse_override(where).value() == str(folder)
