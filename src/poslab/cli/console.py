"""What a person meets on the command line: checks before anything is made, errors in one line.

Nothing here imports torch until a configuration has passed the checks that need none.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from poslab.cli.explain import debugging, explain
from poslab.config.overrides import job_overrides
from poslab.errors import ConfigError, DivergedError
from poslab.system.ranks import is_second_rank, rank


class ConsoleHandler(logging.StreamHandler[Any]):
    """Writes to whatever ``sys.stdout`` is now: a live progress bar puts itself there and prints lines above itself."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    def handleError(self, record: logging.LogRecord) -> None:
        """Say no more where nobody listens: ``| head`` has ended, the stream is closed or goes to a disk that is full.

        The run and its log file go on.
        """
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def filter(self, record: logging.LogRecord) -> bool:
        """The first rank speaks for all; what libraries warn of is for the log file: nobody can do a thing about it."""
        if is_second_rank() or (record.name == "py.warnings" and not debugging()):
            return False
        return bool(super().filter(record))

    def emit(self, record: logging.LogRecord) -> None:
        # A process that is started without one (``>&-``) has None there.
        if self.stream is not None:
            super().emit(record)

    @property
    def stream(self) -> Any:
        return sys.stdout


class LogFile(logging.FileHandler):
    """The run's log, which the first rank writes; what went wrong in another one goes into a file of that one.

    It is not what a run ends for.
    """

    def __init__(self, filename: str, **options: Any) -> None:
        path = Path(filename)
        super().__init__(path.with_suffix(f".rank{rank()}{path.suffix}") if is_second_rank() else path, **options)

    def filter(self, record: logging.LogRecord) -> bool:
        wrong = record.exc_info is not None or record.levelno >= logging.WARNING
        return (wrong or not is_second_rank()) and bool(super().filter(record))

    def handleError(self, record: logging.LogRecord) -> None:
        """A disk that is full, or a folder that is gone: what matters more fails by it too, and says so in one line."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


@contextmanager
def one_line_errors(config_dir: Path) -> Iterator[None]:
    """End the process with one line and exit code 1 where an exception would end it with a traceback."""
    # Hydra prints errors its own way, over several lines, unless it is told to let them through.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    except Exception as error:
        if debugging():
            raise
        sys.exit(f"error: {explain(error, config_dir)}")
    except KeyboardInterrupt:
        if debugging():
            raise
        sys.exit(130)


def check_typed() -> None:
    """Refuse what Hydra would refuse with a page of usage, and bytes that are no text, which no file here could hold.

    Raises:
        ConfigError: one line that names the words and the way out.
    """
    for word in sys.argv[1:]:
        if not word.isascii() and word != word.encode("utf-8", "replace").decode():
            raise ConfigError(f"'{word}' holds bytes that are no UTF-8; type it in another way")

    def refuse(message: str) -> NoReturn:
        _, _, words = message.partition("unrecognized arguments: ")
        together = "write the overrides together, all before the flags or all behind them; " if "=" in words else ""
        raise ConfigError(f"{message}; {together}see python train.py --help")

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    if parser.parse_args().experimental_rerun:
        raise ConfigError(
            "--experimental-rerun reads a pickle, which can run anything; a run's config.yaml says how to run it again"
        )


@contextmanager
def job_errors(config_dir: Path) -> Iterator[None]:
    """The same for an error inside a single job, before Hydra adds a line of its own; a sweep gets it raised."""
    try:
        yield
    except Exception as error:
        if debugging() or in_sweep():
            raise
        if is_second_rank() and isinstance(error, (ConfigError, DivergedError)):
            # The first rank has come to the same end, and says so.
            raise SystemExit(1) from None
        where = f"rank {rank()}: " if is_second_rank() else ""
        raise SystemExit(f"error: {where}{explain(error, config_dir)}") from None


def folder_and_overrides() -> tuple[Path, list[str]]:
    """Where Hydra wants the job of this process to write, and what was typed to make it different."""
    hydra = HydraConfig.get()
    return Path(hydra.runtime.output_dir), job_overrides(hydra.overrides.task)


def in_sweep() -> bool:
    """Whether this job is one of many."""
    return bool(HydraConfig.get().mode == RunMode.MULTIRUN)
