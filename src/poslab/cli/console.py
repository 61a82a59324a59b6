"""The console of a command: log handlers, a check of the typed words, errors in one line.

Nothing here imports torch until a configuration has passed the checks that need none.
"""

import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from poslab.cli.explain import debugging, explain
from poslab.config.overrides import job_overrides, quoted_condition
from poslab.errors import ConfigError, DivergedError
from poslab.system.ranks import is_rank_zero, rank

# Errors that every rank of a run raises.
EXPECTED = (ConfigError, DivergedError, HydraException, OmegaConfBaseException)


class Unbroken(logging.Handler):
    """Ignores an output that cannot be written: ``| head`` has ended, the disk is full, the run's folder is removed.

    If the run's other files fail too, the run reports it in one line.
    """

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


class ConsoleHandler(Unbroken, logging.StreamHandler[Any]):
    """Writes to the current ``sys.stdout``, which a live progress bar replaces to print lines above itself."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Only rank 0 prints, and warnings of libraries go to the log file only."""
        if not is_rank_zero() or (record.name == "py.warnings" and not debugging()):
            return False
        return bool(super().filter(record))

    def emit(self, record: logging.LogRecord) -> None:
        # None: the process was started without the stream (``>&-``).
        if self.stream is not None:
            super().emit(record)

    @property
    def stream(self) -> Any:
        return sys.stdout


class LogFile(Unbroken, logging.FileHandler):
    """The log file of a run, written by rank 0; any other rank writes its warnings and errors to a file of its own.

    A log that cannot be written does not end the run.
    """

    def __init__(self, filename: str, **options: Any) -> None:
        path = Path(filename)
        own = path if is_rank_zero() else path.with_suffix(f".rank{rank()}{path.suffix}")
        # The name of a folder may have bytes that are not UTF-8.
        super().__init__(own, **{"errors": "backslashreplace", **options})

    def filter(self, record: logging.LogRecord) -> bool:
        wrong = record.exc_info is not None or record.levelno >= logging.WARNING
        return (wrong or is_rank_zero()) and bool(super().filter(record))


@contextmanager
def one_line_errors(config_dir: Path) -> Iterator[None]:
    """End the process with one line and exit code 1 instead of a traceback, or with code 130 after a Ctrl-C."""
    # With this, Hydra raises errors instead of printing them over several lines.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if debugging():
            traceback.print_exc()
        if isinstance(error, KeyboardInterrupt):
            raise SystemExit(130) from None
        if not is_rank_zero() and isinstance(error, EXPECTED):
            # Rank 0 ends by the same error and prints it.
            raise SystemExit(1) from None
        where = "" if is_rank_zero() else f"rank {rank()}: "
        raise SystemExit(f"error: {where}{explain(error, config_dir)}") from None


def check_typed() -> None:
    """Refuse words that Hydra would refuse with a page of usage, and bytes that are not UTF-8.

    Raises:
        ConfigError: one line that names the words and the way out.
    """
    for word in sys.argv[1:]:
        if not word.isascii() and word != word.encode("utf-8", "replace").decode():
            raise ConfigError(f"'{word}' holds bytes that are not UTF-8; type it in another way")

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


def quote_conditions() -> None:
    """Put the conditions of ``trainer.stop_when`` in quotes: the shell has removed those that were typed."""
    sys.argv[1:] = [quoted_condition(word) for word in sys.argv[1:]]


def job_errors(config_dir: Path) -> AbstractContextManager[None]:
    """Do the same inside a single job, before Hydra adds a line of its own; a sweep gets the error itself."""
    return nullcontext() if in_sweep() else one_line_errors(config_dir)


def folder_and_overrides() -> tuple[Path, list[str]]:
    """The folder of this process's job, and the overrides that make the job different."""
    hydra = HydraConfig.get()
    # As typed: ${data.batch_size} cannot be resolved in Hydra's part of the configuration.
    typed: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    return Path(hydra.runtime.output_dir), job_overrides(typed)


def in_sweep() -> bool:
    """Whether this job is part of a sweep."""
    return bool(HydraConfig.get().mode == RunMode.MULTIRUN)
