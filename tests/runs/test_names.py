"""Which folder is the latest."""

import os
from pathlib import Path

from poslab.runs.names import newest


def made(folder: Path, name: str, time: float) -> Path:
    (folder / name).mkdir()
    (folder / name / "config.yaml").touch()
    os.utime(folder / name / "config.yaml", (time, time))
    return folder / name


def test_the_latest_is_the_one_that_was_named_last(tmp_path: Path) -> None:
    """Field case: an older run that was resumed, copied or edited later has the newer file."""
    assert newest(tmp_path.glob("*/config.yaml")) is None
    own = made(tmp_path, "mine", 9.0)
    assert newest(tmp_path.glob("*/config.yaml")) == own
    made(tmp_path, "copy-rope-d32-h4-s20260101_20261130-235959-aaaa", 5.0)
    latest = made(tmp_path, "copy-learned-d32-h4-s0_20261201-000000-zzzz", 1.0)
    assert newest(tmp_path.glob("*/config.yaml")) == latest
    same_second = made(tmp_path, "copy-learned-d32-h4-s0_20261201-000000-aaaa", 2.0)
    assert newest(tmp_path.glob("*/config.yaml")) == same_second
