"""What a run leaves behind: its folder, its resolved configuration, its status and its final numbers.

Plain files, no torch: a comparison reads thousands of them.
"""

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import yaml

from poslab.config import TrainConfig
from poslab.rules import ConfigError


class DivergedError(RuntimeError):
    """The loss is no longer a finite number."""


class LostFolderError(RuntimeError):
    """Someone has removed the run's folder while the run was going."""


Status = Literal["completed", "failed", "diverged", "interrupted"]
CONFIG_FILE = "config.yaml"
RESULT_FILE = "result.json"
METRICS_FILE = "metrics.csv"
# In a sweep's folder, beside those of its jobs.
INVALID_FILE = "invalid.json"
CLAIMS_FILE = "claims.json"
SUPERSEDED = "superseded"
COPIES = "copies"
"""The folder of a bundle's copies, each a run folder."""
EVENTS = "events.out.tfevents.*"
KEPT_BYTES = 8192
"""Of ``result.json`` while a run is going: enough for its status, settings and parameters."""
PART = ".part"
"""What the name of a file ends in while it is being written."""


@dataclass(kw_only=True)
class Result:
    """The content of ``result.json``.

    Attributes:
        status: how the run ended.
        error: what went wrong, in one line, or None.
        metrics: name to number; the last value of every logged scalar, ``start/...`` and ``best/...`` of the
            validation, and ``train/loss_start``. Of a bundle: the means over the copies that completed, and how many
            those are as ``copies/completed``.
        batches_by_length: batches that the run trained on, by the length of their rows in the task's own unit.
        out_of_reach: beginning of a metric's name (``length/40``) to the reason why the run has no such number.
        parameters: trainable parameters by part, and their total.
        overrides: what was typed after ``train.py``.
        seed: of the run.
        wall_seconds: from the start of the job to its end; of a run that was stopped and went on, all its parts.
        device: what it computed on, `poslab.devices.device_name`; None when it never got that far.
        versions: of Python and the packages that decide numbers.
    """

    status: Status
    error: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    parameters: Mapping[str, int] = field(default_factory=dict)
    batches_by_length: Mapping[str, int] = field(default_factory=dict)
    out_of_reach: Mapping[str, str] = field(default_factory=dict)
    overrides: Sequence[str] = ()
    seed: int
    wall_seconds: float = 0.0
    device: str | None = None
    versions: Mapping[str, str] = field(default_factory=lambda: versions())


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide numbers."""
    packages = ("poslab", "torch", "lightning", "hydra-core", "tensorboard", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def by_length(metrics: Mapping[str, float]) -> dict[str, dict[int, float]]:
    """The scores ``length/<n>/<score>`` as one curve a score, from the shortest length to the longest."""
    curves: dict[str, dict[int, float]] = {}
    for name, value in metrics.items():
        part, length, score = [*name.split("/", 2), "", ""][:3]
        if part == "length" and length.isdecimal() and score:
            curves.setdefault(score, {})[int(length)] = value
    return {score: dict(sorted(curve.items())) for score, curve in sorted(curves.items())}


class RunFolder:
    """One folder for one run, claimed once and never shared."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    def taken(self) -> bool:
        """Whether a run has claimed this folder."""
        # Not Path.exists, which raises where a name is too long or a folder must not be read.
        return os.path.exists(self.path / CONFIG_FILE)

    def check_usable(self) -> None:
        """Make sure a run can be written here, before anything is.

        Raises:
            ConfigError: the folder holds a run already, or cannot be made or written.
        """
        if self.taken():
            raise ConfigError(
                f"{self.path} already holds a run; choose another hydra.run.dir, or go on with it by resume=auto"
            )
        self.check_writable()

    def check_writable(self, room: int = 0) -> None:
        """See `check_writable`."""
        check_writable(self.path, "hydra.run.dir", room)

    def lost(self) -> LostFolderError:
        """What a run whose folder is not there any more ends by."""
        return LostFolderError(
            f"{self.path} was removed while its run was going; nothing of it is left, start it again"
        )

    def clear_parts(self) -> None:
        """Remove what a killed process was writing, which nobody will go on with."""
        for part in self.path.rglob(f".*{PART}"):
            part.unlink(missing_ok=True)

    def claim(self, job: TrainConfig, overrides: Sequence[str]) -> None:
        """Make the folder this run's own: write ``config.yaml``, which only one run can be the first to do.

        Raises:
            ConfigError: another run was first.
        """
        # Double quotes: single ones are none in Windows' cmd.
        quoted = f'"{self.path.absolute().as_posix()}"'
        header = (
            "# The whole resolved configuration. The same run again:\n"
            f"#   python train.py --config-dir {quoted} --config-name config\n"
        )
        # The defaults bring the schema and the folder names when this file is fed back.
        content = {
            "defaults": ["schema", "hydra_settings", "_self_", {"override hydra/sweeper": "grid"}],
            **asdict(job),
        }
        self.path.mkdir(parents=True, exist_ok=True)
        text = header + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        try:
            write_first(self.path / CONFIG_FILE, text.encode())
        except FileExistsError as error:
            raise ConfigError(f"{self.path} was taken by another run; choose another hydra.run.dir") from error
        # Of a process that was killed before it came so far.
        self.clear_parts()
        self.mark_unfinished(job, overrides)

    def mark_unfinished(self, job: TrainConfig, overrides: Sequence[str], seconds_before: float = 0.0) -> None:
        """What ``result.json`` says while the run is going, and for ever if its process is killed.

        Args:
            job: its configuration.
            overrides: what was typed.
            seconds_before: what its earlier parts took.
        """
        result = Result(
            status="interrupted",
            error="the run has not ended: it is still going, or its process was killed",
            overrides=overrides,
            seed=job.seed,
            wall_seconds=seconds_before,
        )
        # Spaces, which JSON allows: room for what is to be said when the disk is full.
        write_atomically(self.path / RESULT_FILE, _encoded(result).ljust(KEPT_BYTES) + b"\n")

    def finish(self, result: Result) -> None:
        """Write ``result.json``, whole or not at all; on a full disk where `mark_unfinished` has kept room for it.

        Raises:
            OSError: it cannot be written, or not all of it; then the status and the error are there.
        """
        path = self.path / RESULT_FILE
        try:
            write_atomically(path, _encoded(result))
        except OSError:
            short = _encoded(replace(result, metrics={}, batches_by_length={}, out_of_reach={}))
            if path.exists() and len(short) <= path.stat().st_size:
                with open(path, "r+b") as file:
                    file.write(short.ljust(path.stat().st_size))
            raise


def _encoded(result: Result) -> bytes:
    return json.dumps(asdict(result), indent=2, allow_nan=False).encode() + b"\n"


def check_writable(folder: Path, key: str, room: int = 0) -> None:
    """Make sure that a folder, which need not be there, can be made and written, before anything is.

    Args:
        folder: as it was given.
        key: the setting that chooses another.
        room: bytes that its files will take.

    Raises:
        ConfigError: names the folder and the reason.
    """
    # Nothing is made yet: the nearest folder that is there says whether this one can be.
    path = folder.absolute()
    nearest = next(place for place in (path, *path.parents) if os.path.lexists(place))
    try:
        with tempfile.TemporaryFile(dir=nearest), suppress(FileNotFoundError):
            # Finds a name that the file system has no room for.
            os.lstat(path / CONFIG_FILE)
    except OSError as error:
        raise ConfigError(
            f"cannot write to {folder} ({error.strerror}); choose a folder of yours with {key}="
        ) from error
    free = shutil.disk_usage(nearest).free
    if free < room:
        raise ConfigError(
            f"{folder} has {as_text(free)} free and the run needs about {as_text(room)} for its "
            f"checkpoints and pictures; make room, or choose a folder elsewhere with {key}="
        )


def as_text(size: float) -> str:
    """Bytes as a person says them."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1e} PiB" if size >= 1e4 else f"{size:.1f} PiB"


def write_atomically(path: Path, content: bytes | memoryview, durable: bool = False) -> None:
    """Write beside the target and rename, so that a reader sees the old file or the new one, never half of one.

    Args:
        path: of the file; its folder is made.
        content: all of it.
        durable: also where the machine itself goes down. Takes milliseconds, so only for what cannot be made again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        beside.write_bytes(content)
        if durable:
            with open(beside, "r+b") as file:
                os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_first(path: Path, content: bytes) -> None:
    """The same for a file that only one process may be the first to write.

    Raises:
        FileExistsError: another was first.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        beside.write_bytes(content)
        try:
            os.link(beside, path)
        except FileExistsError:
            raise
        except OSError:
            # A file system without hard links.
            with open(path, "xb") as file:
                file.write(content)
    finally:
        beside.unlink(missing_ok=True)
