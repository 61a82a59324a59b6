"""Names of the files and folders in a run's folder and in a sweep's folder."""

import re
from collections.abc import Iterable
from pathlib import Path

CONFIG_FILE = "config.yaml"
RESULT_FILE = "result.json"
METRICS_FILE = "metrics.csv"
# In a sweep's folder, beside those of its jobs.
INVALID_FILE = "invalid.json"
CLAIMS_FILE = "claims.json"
SUPERSEDED = "superseded"
SWEEP_FILE = "sweep.json"
"""The list of a sweep's jobs."""
COPIES = "copies"
"""The folder of a run's replicas; each has a run folder in it."""
EVENTS = "events.out.tfevents.*"


def newest(files: Iterable[Path]) -> Path | None:
    """The folder that was named last, of those that contain these files; None without any.

    By the time in its name: the time of a file changes when a folder is copied, resumed or looked at by an editor. A
    name without a time counts as older; of those with the same time, the one whose file is newer is the last.
    """

    def age(file: Path) -> tuple[str, float]:
        times = re.findall(r"(?<!\d)\d{8}-\d{6}(?!\d)", file.parent.name)
        return (times[-1] if times else ""), file.stat().st_mtime

    return max(files, key=age).parent if (files := [*files]) else None
