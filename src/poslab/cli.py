"""What a person meets on the command line: checks before anything is made, errors in one line.

Nothing here imports torch until a configuration has passed the checks that need none.
"""

import logging
import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

# Registers the schema and the folder names with Hydra.
from poslab import config as schema
from poslab.explanations import explain
from poslab.ranks import check_ranks, is_second_rank, rank, started_by_first_rank
from poslab.results import DivergedError
from poslab.rules import ConfigError


def debugging() -> bool:
    """Whether the person asked for whole tracebacks."""
    return os.environ.get("POSLAB_DEBUG", "0") not in ("", "0")


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


def require_preflight() -> None:
    """Have every job checked before Hydra makes a folder, also one whose configuration says nothing of Hydra itself."""
    callbacks = {"preflight": {"_target_": f"{Preflight.__module__}.{Preflight.__qualname__}"}}
    ConfigStore.instance().store(group="hydra", name="config", node=HydraConf(callbacks=callbacks), provider="poslab")


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


def job_overrides(overrides: Sequence[str]) -> list[str]:
    """Those that make a job different: not how it is started again, nor what Hydra does with it."""
    return [one for one in overrides if not one.lstrip("+~").startswith(("resume=", "sweep.", "hydra.", "hydra/"))]


def quoted(value: str) -> str:
    """A value that Hydra's override grammar reads back as it is."""
    # A backslash is itself, except before a quote: there, and before the closing one, it has to be doubled.
    doubled = re.sub(r"(\\+)(?='|$)", r"\1\1", value)
    escaped = doubled.replace("'", "\\'")
    return f"'{escaped}'"


def pasted(key: str, value: Path) -> str:
    """``key=value`` as it can be pasted behind a command, whatever is in the path.

    In double quotes where it needs any and they do: single ones are none in Windows' cmd.
    """
    text = f"{key}={value}"
    if re.fullmatch(r"[A-Za-z0-9._/=-]*", text) and text.count("=") == 1:
        return text
    text = f"{key}={quoted(str(value))}"
    return shlex.quote(text) if re.search(r'["$`!\\]', text) else f'"{text}"'


def in_sweep() -> bool:
    """Whether this job is one of many."""
    return bool(HydraConfig.get().mode == RunMode.MULTIRUN)


class Preflight(Callback):
    """Refuses a bad configuration before Hydra makes a folder for it."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        try:
            check_names(config)
        except Exception as error:
            if debugging():
                traceback.print_exc()
            raise SystemExit(f"error: {explain(error, main_config_dir(config))}") from None

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        if started_by_first_rank():
            return
        try:
            from poslab.preflight import preflight

            # First: the folder's name is made from the configuration.
            job = schema.checked(config)
            check_names(config)
            check_ranks(job, str(OmegaConf.to_container(config.hydra.run, resolve=False)["dir"]))  # type: ignore[index, call-overload]
            # The folder is the first rank's to claim.
            preflight(config, None if is_second_rank() else Path(config.hydra.run.dir))
        except Exception as error:
            # Hydra turns an Exception from a callback into a warning and goes on; a SystemExit passes.
            if debugging():
                traceback.print_exc()
            if is_second_rank():
                raise SystemExit(1) from None
            raise SystemExit(f"error: {explain(error, main_config_dir(config))}") from None


def check_names(config: DictConfig) -> None:
    """Refuse names of files that Hydra could not make in a run's folder, or whose own config.yaml would be the run's.

    Raises:
        ConfigError: names the value and the way out.
    """
    # Hydra looks at it when the folder is there already, and then without the other settings.
    OmegaConf.to_container(OmegaConf.masked_copy(config, "hydra").hydra.job, resolve=True)
    subdir, job = config.hydra.output_subdir, config.hydra.job.name
    if subdir is not None and (os.path.normpath(subdir) == "." or subdir.startswith(("/", "..")) or too_long(subdir)):
        raise ConfigError(f"hydra.output_subdir={subdir} is no name in the run's folder; give one, .hydra say, or null")
    if os.path.basename(job) != job or too_long(f"{job}.log"):
        raise ConfigError(f"hydra.job.name={job} is no name of a file; give another, without a slash")


def too_long(path: str) -> bool:
    """Whether file systems have no room for a name in it."""
    return any(len(os.fsencode(name)) > 255 for name in path.split("/"))


def main_config_dir(config: DictConfig) -> Path:
    """The folder that the program's own configuration came from."""
    sources = OmegaConf.select(config, "hydra.runtime.config_sources") or []
    return next((Path(source.path) for source in sources if source.provider == "main"), Path("conf"))
