"""What a run leaves behind: its folder, its resolved configuration, its status and its final numbers.

Plain files, no torch: a comparison reads thousands of them.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import yaml

from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError, LostFolderError
from poslab.runs.names import CONFIG_FILE, RESULT_FILE
from poslab.runs.result import KEPT_BYTES, Result, _encoded
from poslab.system.files import PART, check_writable, write_atomically, write_first
from poslab.system.ranks import is_second_rank


class RunFolder:
    """One folder for one run, claimed once and never shared."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @property
    def writes(self) -> bool:
        """Whether this process writes the folder: of several ranks only rank 0 does."""
        return not is_second_rank()

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
