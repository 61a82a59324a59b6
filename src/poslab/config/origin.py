"""The files that ``init_from`` names, and their checksum. Nothing here imports torch."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from poslab.errors import ConfigError

BEST = "checkpoints/best.ckpt"
REPLICAS = "copies"


def weight_files(init_from: str, seeds: Sequence[int]) -> list[Path]:
    """The file that each replica takes its weights from.

    A file, or the ``best.ckpt`` of a run, is for all of them. Of a run of several seeds, each gets that of the replica
    with its own seed.

    Raises:
        ConfigError: there is no such file; one line that says what is there instead.
    """
    path = Path(init_from)
    replicas = _replicas(path)
    if not replicas:
        return [_whole(path)] * len(seeds)
    missing = [seed for seed in seeds if f"seed{seed}" not in replicas]
    if missing:
        raise ConfigError(
            f"init_from={path} is a run of several seeds without a replica of seed {missing[0]}; it has "
            f"{', '.join(replicas)}; use one of these seeds, or init_from={path / REPLICAS / next(iter(replicas))}"
        )
    return [replicas[f"seed{seed}"] for seed in seeds]


def weights_checksum(init_from: str) -> str:
    """The sha256 of the file that ``init_from`` names; of a run of several seeds, that of the sums of all replicas.

    Raises:
        ConfigError: there is no such file, or it cannot be read.
    """
    path = Path(init_from)
    replicas = _replicas(path)
    if not replicas:
        return _sha256(_whole(path))
    return hashlib.sha256("".join(map(_sha256, replicas.values())).encode()).hexdigest()


def _replicas(path: Path) -> dict[str, Path]:
    """The best checkpoint of each replica of a run of several seeds, by the replica's name."""
    # Path.glob raises where a name is too long.
    found = sorted(path.glob(f"{REPLICAS}/seed*/{BEST}")) if os.path.isdir(path / REPLICAS) else []
    return {file.parents[1].name: file for file in found}


def _whole(path: Path) -> Path:
    if os.path.isfile(path):
        return path
    if os.path.isfile(path / BEST):
        return path / BEST
    if not os.path.isdir(path):
        what = "is not a regular file" if os.path.exists(path) else "does not exist"
        raise ConfigError(f"init_from={path} {what}; give the folder of a run, or the file of a checkpoint")
    raise ConfigError(f"init_from={path} has no {BEST}; give the folder of a run, or the file of a checkpoint")


def _sha256(file: Path) -> str:
    try:
        with open(file, "rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"init_from: {file} cannot be read ({error.strerror})") from error
