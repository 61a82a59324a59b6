"""What a person meets on the command line: checks before anything is made, errors in one line.

Nothing here imports torch until a configuration has passed the checks that need none.
"""

import errno
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
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

# Registers the schema and the folder names with Hydra.
from poslab import config as schema
from poslab.ranks import check_ranks, is_second_rank, rank, started_by_first_rank
from poslab.results import DivergedError, LostFolderError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What torch says on a CPU and on an accelerator, beside Python's own MemoryError.
NO_MEMORY = ("can't allocate memory", "out of memory", "Cannot allocate memory")
GO_ON = "what was saved is there, and the same command with resume=auto and hydra.run.dir=<its folder> goes on"


def debugging() -> bool:
    """Whether the person asked for whole tracebacks."""
    return os.environ.get("POSLAB_DEBUG", "0") not in ("", "0")


LONGEST_LINE = 1000
"""Of an error, in characters."""


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
            raise schema.ConfigError(f"'{word}' holds bytes that are no UTF-8; type it in another way")

    def refuse(message: str) -> NoReturn:
        _, _, words = message.partition("unrecognized arguments: ")
        together = "write the overrides together, all before the flags or all behind them; " if "=" in words else ""
        raise schema.ConfigError(f"{message}; {together}see python train.py --help")

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    parser.parse_args()


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
        if is_second_rank() and isinstance(error, (schema.ConfigError, DivergedError)):
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
        raise schema.ConfigError(
            f"hydra.output_subdir={subdir} is no name in the run's folder; give one, .hydra say, or null"
        )
    if os.path.basename(job) != job or too_long(f"{job}.log"):
        raise schema.ConfigError(f"hydra.job.name={job} is no name of a file; give another, without a slash")


def too_long(path: str) -> bool:
    """Whether file systems have no room for a name in it."""
    return any(len(os.fsencode(name)) > 255 for name in path.split("/"))


def main_config_dir(config: DictConfig) -> Path:
    """The folder that the program's own configuration came from."""
    sources = OmegaConf.select(config, "hydra.runtime.config_sources") or []
    return next((Path(source.path) for source in sources if source.provider == "main"), Path("conf"))


def explain(error: BaseException, config_dir: Path) -> str:
    """One line for an error: what was wrong, which values, what to do."""
    return one_line(_explain(error, config_dir))


def one_line(text: str) -> str:
    """A text that a terminal shows on one line, whatever values are in it; a very long one without its middle."""
    words = " ".join(text.split())
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in words)
    if len(shown) <= LONGEST_LINE:
        return shown
    return f"{shown[: LONGEST_LINE // 2]} ... {shown[-LONGEST_LINE // 2 :]}"


def _explain(error: BaseException, config_dir: Path) -> str:
    if isinstance(error, MissingConfigException):
        return _explain_choice(str(error), config_dir)
    if isinstance(error, MemoryError) or re.search("out of memory|allocate memory", str(error)):
        return f"out of memory ({error}); use a smaller data.batch_size, data.val_batch_size, model or task.length"
    if isinstance(error, OverrideParseException):
        return _explain_override(error)
    if "integer string conversion" in str(error):
        return _explain_digits()
    if "Config group override must be a string or a list" in str(error):
        return _explain_null_choice(config_dir)
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        return _explain_hydra(error, config_dir)
    line = " ".join(str(error).split())
    if not line:
        line = _where(error)
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        what = error.filename or error.filename2
        return f"{error.strerror}{f' for {what}' if what else ''}; make room: {GO_ON}"
    if isinstance(error, MemoryError) or any(said in line for said in NO_MEMORY):
        return (
            f"out of memory ({line[:160] or type(error).__name__}); "
            f"use a smaller data.batch_size, data.val_batch_size or model, or free some: {GO_ON}"
        )
    if isinstance(error, (schema.ConfigError, DivergedError, LostFolderError, ValueError)) and line:
        return line
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename} cannot be used ({error.strerror}); give another"
    if _raised_by_hydra(error):
        return f"Hydra makes nothing of what was typed ({type(error).__name__}: {line}); see python train.py --help"
    return f"{type(error).__name__}: {line} (POSLAB_DEBUG=1 shows the traceback)"


def _raised_by_hydra(error: BaseException) -> bool:
    """Whether it comes from the inside of Hydra, which does not expect every value that its grammar can say."""
    frames = traceback.extract_tb(error.__traceback__)
    package = Path(frames[-1].filename).parts if frames else ()
    return "hydra" in package or "omegaconf" in package


def _where(error: BaseException) -> str:
    """The function that raised it, for an error without a text."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"in {frames[-1].name} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _explain_override(error: OverrideParseException) -> str:
    typed = error.override
    key, equals, value = typed.partition("=")
    if not equals:
        return f"'{typed}' sets nothing; write key=value, pos=sinusoidal say; see python train.py --help"
    if re.fullmatch(r"[+~]*[A-Za-z_][\w./@:-]*", key, re.ASCII):
        return (
            f"{key}: {value} cannot be read; put a value with other characters in quotes within quotes: \"{key}='...'\""
        )
    return f"'{typed}' cannot be read: '{key}' is no name of a key; see python train.py --help"


def _explain_digits() -> str:
    """Python does not say which number was too long to read; what was typed does."""
    typed = next((one for one in sys.argv[1:] if re.search(r"\d{4300}", one)), "a value")
    return f"{typed.partition('=')[0]} is a number of {len(typed.partition('=')[2])} digits; give a shorter one"


def _explain_choice(text: str, config_dir: Path) -> str:
    """Hydra's "Could not find" with its tab-indented list, as one line with the nearest name."""
    wanted = re.search(r"Could not (?:find|load) '([^']+)'|Cannot find primary config '([^']+)'", text)
    offered = text.partition("Available options in")[2].partition("Config search path")[0]
    listed = [line.strip() for line in offered.splitlines()[1:] if line.strip()]
    if not wanted:
        return " ".join(text.split())
    group, _, choice = (wanted.group(1) or wanted.group(2)).rpartition("/")
    if not group:
        return f"unknown configuration '{choice}'{schema.did_you_mean(choice, listed)}"
    # Hydra lists them for a choice, not for one of a list of choices.
    options = listed or _choices(group, config_dir)
    near = schema.nearest(choice, options)
    hint = f"; did you mean '{near}'?" if near else ""
    return f"unknown choice {group}={choice}{hint}; choices: {', '.join(options)}"


def _explain_null_choice(config_dir: Path) -> str:
    """Hydra does not say which group was given ``null``; what was typed does."""
    for typed in sys.argv[1:]:
        group, _, values = typed.lstrip("+").partition("=")
        if "null" in values.split(",") and (choices := _choices(group, config_dir)):
            return f"{group}=null chooses nothing; choices: {', '.join(choices)}"
    return "a group of choices was given null; see python train.py --help"


def _choices(group: str, config_dir: Path) -> list[str]:
    return sorted(path.stem for path in (config_dir / group).glob("*.yaml"))


def _explain_hydra(error: BaseException, config_dir: Path) -> str:
    texts = [str(error)]
    cause = error.__cause__
    while cause is not None:
        texts.append(str(cause))
        cause = cause.__cause__
    text = "\n".join(texts)
    full_key = next(iter(re.findall(r"full_key: (\S+)", text)), None)
    unknown = re.search(r"Key '([^']+)' (?:is )?not in|Could not override '([^']+)'|Unable to find '([^']+)'", text)
    if "Value '" in text and full_key:
        reason = next(line.strip() for line in text.splitlines() if "Value '" in line)
        return f"{full_key}: {reason[0].lower()}{reason[1:]}"
    if unknown:
        key = re.search(r"Could not (?:override|append to config at?|delete) '([^']+)'", text)
        name = full_key or (key and key.group(1)) or next(filter(None, unknown.groups()))
        return f"unknown key '{name}'{_nearest_key(str(name), config_dir)}"
    swept = re.search(r"Ambiguous value for argument '([^']+)'", text)
    if swept:
        return f"{swept.group(1)} gives several values; add -m to sweep over them, or write [a,b] for a list"
    said = " ".join(line.strip() for line in texts[0].splitlines() if line.strip() and "https://" not in line)
    reason = next((line.strip() for line in "\n".join(texts[1:]).splitlines() if line.strip()), "")
    return f"{said}: {reason}" if said.startswith("Error merging") and reason else said


def _nearest_key(name: str, config_dir: Path) -> str:
    """The nearest key that a person can type, from the default configuration and the groups."""
    keys = _known_keys(config_dir)
    prefix, _, leaf = name.rpartition(".")
    siblings = {key.rpartition(".")[2]: key for key in keys if key.rpartition(".")[0] == prefix}
    # The right leaf under a forgotten or wrong prefix first (d_model for model.d_model), then a near leaf beside it.
    nearest = next((key for key in keys if key.rpartition(".")[2] == leaf), None)
    nearest = nearest or siblings.get(schema.nearest(leaf, siblings) or "")
    if not nearest and not siblings:
        nearest = schema.nearest(name, keys)
    if nearest:
        return f"; did you mean '{nearest}'?"
    if not siblings:
        return "; see python train.py --help"
    return f"; {f'under {prefix!r} ' if prefix else ''}there are: {', '.join(sorted(siblings))}"


def _known_keys(config_dir: Path) -> list[str]:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    groups = {path.name for path in config_dir.iterdir() if path.is_dir()}
    # The keys of the choices that were typed: pos=sinusoidal has others than the default.
    chosen = [one for one in sys.argv[1:] if one.partition("=")[0] in groups]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_dir.resolve()), version_base="1.3"):
        try:
            default = OmegaConf.to_container(compose("train", overrides=chosen))
        except Exception:
            default = OmegaConf.to_container(compose("train"))
    return [*_flat(default), *(path.name for path in config_dir.iterdir() if path.is_dir())]


def _flat(node: Any, prefix: str = "") -> Iterator[str]:
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
