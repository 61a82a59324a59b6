"""The folder of a run: its resolved configuration, its status and its final numbers.

This module does not import torch, because a comparison reads thousands of these folders.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import yaml

from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError, LostFolderError
from poslab.runs.names import CONFIG_FILE, RESULT_FILE
from poslab.runs.result import KEPT_BYTES, Result, _encoded
from poslab.system.files import PART, check_writable, is_there, write_atomically, write_first
from poslab.system.lock import FolderLock
from poslab.system.ranks import is_rank_zero


class RunFolder:
    """The folder of one run; only one run can claim it.

    Attributes:
        lock: held by rank 0 of the process that writes to the folder.
        claimed: the folder belongs to the run of this process, which has to leave a status in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.lock = FolderLock(self.path)
        self.claimed = False

    @property
    def writes(self) -> bool:
        """Whether this process writes to the folder: only rank 0 does."""
        return is_rank_zero()

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    def taken(self) -> bool:
        """Whether a run has claimed this folder.

        Raises:
            ConfigError: it cannot be looked at now.
        """
        return is_there(self.path / CONFIG_FILE)

    def removed(self) -> bool:
        """Whether the folder of a running run is gone for certain."""
        try:
            return not self.taken()
        except ConfigError:
            return False

    def check_usable(self) -> None:
        """Refuse a folder in which a run cannot be started; writes nothing.

        Raises:
            ConfigError: the folder already contains a run, or cannot be made or written.
        """
        if self.taken():
            raise ConfigError(
                f"{self.path} already holds a run; choose another hydra.run.dir, or resume it with resume=auto"
            )
        self.check_writable()

    def check_writable(self, room: int = 0) -> None:
        """See `check_writable`."""
        check_writable(self.path, "hydra.run.dir", room)

    def lost(self) -> LostFolderError:
        """The error of a run whose folder was removed."""
        return LostFolderError(f"{self.path} was removed during its run, so nothing is left; repeat the command")

    def clear_parts(self) -> None:
        """Remove the temporary files of a killed process."""
        for part in self.path.rglob(f".*{PART}"):
            part.unlink(missing_ok=True)

    def _config(self, job: TrainConfig) -> bytes:
        """The content of ``config.yaml``."""
        # In double quotes, because Windows' cmd does not know single ones.
        quoted_path = f'"{self.path.absolute().as_posix()}"'
        header = (
            "# The whole resolved configuration. The same run again:\n"
            f"#   python train.py --config-dir {quoted_path} --config-name config\n"
        )
        # With these defaults the file can be given to train.py again.
        content = {
            "defaults": ["schema", "hydra_settings", "_self_", {"override hydra/sweeper": "grid"}],
            **asdict(job),
        }
        return (header + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)).encode()

    def store(self, job: TrainConfig) -> None:
        """Write ``config.yaml`` of a claimed folder again."""
        write_atomically(self.path / CONFIG_FILE, self._config(job), durable=True)

    def claim(self, job: TrainConfig, overrides: Sequence[str]) -> None:
        """Claim the folder by writing ``config.yaml``: of several runs only one can be the first to do so.

        Raises:
            ConfigError: another run was first.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            write_first(self.path / CONFIG_FILE, self._config(job))
        except FileExistsError as error:
            raise ConfigError(f"{self.path} was taken by another run; choose another hydra.run.dir") from error
        self.claimed = True
        # An earlier process may have been killed before it had claimed the folder.
        self.clear_parts()
        self.mark_unfinished(job, overrides)

    def mark_unfinished(self, job: TrainConfig, overrides: Sequence[str], seconds_before: float = 0.0) -> None:
        """Write the ``result.json`` of a run that has not ended; it stays if the process is killed.

        Args:
            job: the run's configuration.
            overrides: as typed.
            seconds_before: the duration of the run's earlier parts.
        """
        result = Result(
            status="interrupted",
            error="the run has not ended: it is still going, or its process was killed",
            overrides=overrides,
            seed=job.seed,
            wall_seconds=seconds_before,
        )
        # Padded with spaces, which JSON allows, so that the final status fits here even on a full disk.
        write_atomically(self.path / RESULT_FILE, _encoded(result).ljust(KEPT_BYTES) + b"\n")

    def finish(self, result: Result) -> None:
        """Write ``result.json`` atomically.

        Raises:
            OSError: the disk is full, for example. Then the status and the error, without the numbers, are written into
                the space that `mark_unfinished` reserved.
        """
        path = self.path / RESULT_FILE
        try:
            write_atomically(path, _encoded(result), durable=True)
        except OSError:
            short = _encoded(replace(result, metrics={}, batches_by_length={}, out_of_reach={}))
            if path.exists() and len(short) <= path.stat().st_size:
                with open(path, "r+b") as file:
                    file.write(short.ljust(path.stat().st_size))
            raise
