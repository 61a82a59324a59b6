"""Whether a command ended as one should: trained, shown or refused in one line, and nothing half-written."""

import json
import re
from pathlib import Path

from forking import Ended

LONGEST_LINE = 1200
ENDS = ("completed", "diverged", "interrupted", "failed", "pruned")
SHOWS = ("-h", "--help", "--hydra-help", "--version", "--cfg", "-c", "--info")
# What a library says of itself, and Python of a fault that nobody caught.
NOISE = re.compile(r"Traceback \(most recent|Logging error|\w*Warning: |Exception ignored|Set the environment variable")


def judge(words: list[str], ended: Ended, folder: Path | None) -> tuple[str, str]:
    """What kind of end it was, and what is wrong with it; empty for nothing.

    Args:
        words: the program and what was typed behind it.
        ended: how that ended.
        folder: where it wrote, with nothing but a ``file`` before; None: not to be looked at.
    """
    kind, wrong = kind_of(words, ended)
    if ended.killed:
        return kind, "it did not end when it was told to"
    if found := NOISE.search(ended.stdout + ended.stderr):
        return kind, f"noise: {found.group()}"
    if wrong:
        return kind, wrong
    return kind, "" if folder is None else wrong_in_folders(kind, folder)


def kind_of(words: list[str], ended: Ended) -> tuple[str, str]:
    lines = ended.stderr.splitlines()
    if ended.stopped:
        long = any(re.search(r"trainer\.max_steps\W*(-1|[0-9]{4,})|max_epochs|steps_per_epoch", word) for word in words)
        return "stopped", "" if long and ended.code == 143 else f"it took too long, and ended with {ended.code}"
    if ended.code == 0:
        if any(word in SHOWS for word in words):
            return "shown", "" if ended.stdout else "it said nothing"
        if words[0] != "train.py":
            return "used", "stderr" if lines else "" if ended.stdout else "it said nothing"
        sweep = "sweep done" in ended.stdout
        done = "run completed" in ended.stdout or sweep
        return "trained in a sweep" if sweep else "trained", "" if done and not lines else "stderr, or no end"
    if "sweep done" in ended.stdout:
        return "sweep with failures", "" if ended.code == 1 and not lines else "an odd end of a sweep"
    refused = "run completed" not in ended.stdout
    kind = "diverged" if re.search("run diverged", ended.stdout) else "refused" if refused else "failed"
    if re.search("run failed", ended.stdout):
        kind = "failed"
    if ended.code != 1:
        return kind, f"exit code {ended.code}"
    if len(lines) != 1 or not lines[0].startswith("error: "):
        return kind, f"{len(lines)} lines on stderr"
    if len(lines[0]) > LONGEST_LINE:
        return kind, f"a line of {len(lines[0])} characters"
    if len(lines[0].removeprefix("error: ")) < 8:
        return kind, "it does not say why"
    if "POSLAB_DEBUG" in lines[0]:
        return kind, "the line is not for a person"
    return kind, "" if kind != "failed" else "it failed inside the run"


def wrong_in_folders(kind: str, folder: Path) -> str:
    """A run folder without a status, or anything at all after a refusal."""
    there = [path for path in folder.rglob("*") if path.name != "file"]
    if kind in ("refused", "shown"):
        return f"left behind: {there[0].relative_to(folder)}" if there else ""
    runs = 0
    for config in folder.rglob("config.yaml"):
        # Not the one that hydra.output_subdir=NAME asks Hydra for.
        if not config.read_text(encoding="utf-8").startswith("# The whole resolved configuration"):
            continue
        runs += 1
        result = config.parent / "result.json"
        if not result.exists():
            return f"no status in {config.parent.relative_to(folder)}"
        status = json.loads(result.read_text(encoding="utf-8"))["status"]
        if status not in ENDS:
            return f"status {status}"
        if kind.startswith("trained") and status != "completed":
            return f"status {status} of one that trained"
    if kind.startswith("trained") and not runs:
        return "it left no run"
    half = [path for path in there if path.name.endswith(".part")]
    return f"half-written: {half[0].relative_to(folder)}" if half else ""
