"""Run folders damaged at random: using or comparing them ends in one line or goes well, and never in a traceback."""

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from poslab.comparison.collect import collect
from poslab.comparison.writing import write_comparison
from poslab.errors import ComparisonError, ConfigError
from poslab.runs.result import stored_result
from poslab.trained import load
from support.using_runs import ABLE

WORDS = (
    *(
        b"nan",
        b"-1",
        b"1e999",
        b"9" * 400,
        b"null",
        b"[]",
        b"{}",
        b"true",
        b"'",
        b'"',
        b"*a",
        b"&a",
        b"\0\0\0",
        b"\xff",
    ),
    *(b"\\ud800", b"2001-01-01", b"!!binary aGk=", b"${oc.env:HOME}", b": ", b"\n- x", b",", b"~", b"0x7f", b"1:1:1"),
)
FILES = ("config.yaml", "result.json", "metrics.csv", "checkpoints/last.ckpt")


def damaged(content: bytes, rng: random.Random) -> bytes:
    """The content cut off, with other bytes, with a word put in, or with another value."""
    at = rng.randrange(len(content))
    match rng.randrange(4):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + rng.randbytes(rng.randrange(1, 9)) + content[at + 1 :]
        case 2:
            return content[:at] + rng.choice(WORDS) + content[at:]
    values = [*re.finditer(rb"(?<=[:,\[ ])[-\w.]+", content[:20_000])]
    value = rng.choice(values) if values else None
    return content if value is None else content[: value.start()] + rng.choice(WORDS) + content[value.end() :]


# A level of 400 digits leaves no room for its curve.
@pytest.mark.filterwarnings("ignore:constrained_layout not applied")
@pytest.mark.parametrize("number", [20, pytest.param(300, marks=pytest.mark.faults)])
def test_a_damaged_folder_is_used_or_refused_in_one_line(
    number: int, finished_runs: Callable[..., Path], tmp_path: Path
) -> None:
    seed = int(os.environ.get("FAULTS_SEED", "0"))
    rng = random.Random(seed)
    whole = set()
    for job in range(number):
        run = shutil.copytree(finished_runs(*ABLE), tmp_path / "sweep" / f"job{job}")
        file = run / rng.choice(FILES)
        if file.suffix == ".ckpt":
            whole.add(run.name)
        if rng.random() < 0.1:
            file.unlink()
        else:
            file.write_bytes(damaged(file.read_bytes(), rng))
        said = ""
        try:
            stored_result(run)
            collect([run])
            load(run)
        except (ConfigError, ComparisonError) as refused:
            said = str(refused)
        except Exception as error:
            raise AssertionError(f"FAULTS_SEED={seed}, job {job}: {file}") from error
        assert "\n" not in said, (seed, job, file)
    comparison = write_comparison([tmp_path / "sweep"], tmp_path / "out")
    assert len(comparison.jobs) == number
    # A comparison reads no checkpoint.
    assert whole <= {job.name for job in comparison.jobs if job.status == "completed"}
    assert whole
