"""Run folders as nobody writes them: each does one thing to the folder of a finished job."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)
LONG = "9" * 5000


def replaced(name: str, put: Callable[[Path], object]) -> Callable[[Path], object]:
    def act(folder: Path) -> None:
        (folder / name).unlink()
        put(folder / name)

    return act


def content(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """Change the content of a JSON file, or of a YAML file that is JSON too."""

    def act(folder: Path) -> None:
        found = json.loads((folder / name).read_text())
        change(found)
        (folder / name).write_text(json.dumps(found))

    return act


def result(**values: Any) -> Callable[[Path], object]:
    return content("result.json", lambda found: found.update(values))


def text(name: str, old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text((folder / name).read_text().replace(old, new, 1))


UNREADABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe for a result": (replaced("result.json", os.mkfifo), "result.json cannot be read (it is not a regular file)"),
    "pipe for a config": (replaced("config.yaml", os.mkfifo), "config.yaml cannot be read (it is not a regular file)"),
    "zeros for a result": (
        replaced("result.json", lambda path: path.symlink_to("/dev/zero")),
        "result.json cannot be read (it is not a regular file)",
    ),
    "zeros for a config": (
        replaced("config.yaml", lambda path: path.symlink_to("/dev/zero")),
        "config.yaml cannot be read (it is not a regular file)",
    ),
    "folder for a config": (replaced("config.yaml", lambda path: path.mkdir()), "config.yaml cannot be read"),
    "loop for a config": (
        replaced("config.yaml", lambda path: path.symlink_to(path)),
        "config.yaml cannot be read (Too many levels of symbolic links)",
    ),
    "a result without end": (
        lambda folder: os.truncate(folder / "result.json", 2**40),
        "result.json cannot be read (it is larger than 16.0 MiB)",
    ),
    "a config without end": (
        lambda folder: os.truncate(folder / "config.yaml", 2**40),
        "config.yaml cannot be read (it is larger than 1.0 MiB)",
    ),
    "laughs": (
        lambda folder: (folder / "config.yaml").write_text(LAUGHS),
        "config.yaml cannot be read (it has aliases)",
    ),
    "deep config": (lambda folder: (folder / "config.yaml").write_text("[" * 900), "config.yaml cannot be read"),
    "long number in a config": (
        text("config.yaml", "0.005", LONG),
        "config.yaml cannot be read (it has a number of 5000",
    ),
    "large number in a config": (text("config.yaml", "0.005", str(10**400)), "it has a number of 401 digits"),
    "long number in a result": (
        text("result.json", "3.0", LONG),
        "result.json cannot be read (it has a number of 5000",
    ),
    "half a character": (text("result.json", "seed=", "\\ud800"), "result.json cannot be read"),
    "a date for a name": (text("config.yaml", "0.005", "[{2001-12-14: 1}]"), "it has a name that is not a text"),
    "a number for a name": (text("config.yaml", '"seed"', "1: 2, 'seed'"), "it has a name that is not a text"),
    "long metric": (
        content("result.json", lambda found: found["metrics"].update({f"length/{LONG}/exact_match": 1.0})),
        "metrics has a name of more than 200 characters",
    ),
    "long length": (result(batches_by_length={LONG: 3}), "batches_by_length has a name of more than 200"),
    "not UTF-8": (
        lambda folder: (folder / "config.yaml").write_bytes(b"a: \xff\n"),
        "config.yaml cannot be read ('utf-8' codec",
    ),
    "a date that is none": (text("config.yaml", "0.005", "2001-99-99"), "config.yaml cannot be read"),
    **{
        f"{name} of type {kind}": (result(**{name: value}), f" is of type {kind}")
        for name, value, kind in (
            ("metrics", [1], "list"),
            ("metrics", {"val/loss": "0.1"}, "str"),
            ("parameters", 3, "int"),
            ("overrides", "seed=1", "str"),
            ("seed", "one", "str"),
            ("wall_seconds", True, "bool"),
            ("versions", ["1"], "list"),
            ("error", {}, "dict"),
        )
    },
}
"""Things after which a job is broken, and a part of what is said of it."""
STRANGE: dict[str, Callable[[Path], object]] = {
    "pipe for a table": replaced("metrics.csv", os.mkfifo),
    "zeros for a table": replaced("metrics.csv", lambda path: path.symlink_to("/dev/zero")),
    "a table without end": lambda folder: os.truncate(folder / "metrics.csv", 2**40),
    "steps that go back": lambda folder: (folder / "metrics.csv").write_text(
        "step,val/loss,train/loss,train/loss_mean\n0,4,4,4\n0,4,5,6\n-1,4,9,9\n20,1e308,1e308,1e308\n1e300,1,1,1\n"
    ),
    "a very long error": result(error="x" * 100_000),
    "huge numbers": result(metrics={"val/loss": 1e308, "val/exact_match": -1e308}, wall_seconds=1e308),
    "infinite numbers": text("result.json", '"wall_seconds": 3.0', '"wall_seconds": 1e999'),
    "NaN for a rate": text("config.yaml", "0.005", ".nan"),
    "a date for a rate": text("config.yaml", "0.005", "2001-12-14"),
    "a strange plan": content("config.yaml", lambda found: found.update(comparison={"tune": {"a": 1}, "margin": "x"})),
    "pictures that are pipes": lambda folder: (
        (folder / "figures").mkdir(),
        os.mkfifo(folder / "figures/heads_layer_0.png"),
    ),
}
"""Things that a comparison survives, whatever it makes of the job."""
