"""Turns an error into one line for the person who typed the command, with the values and the way out."""

import errno
import os
import re
import sys
import traceback
from itertools import accumulate
from pathlib import Path

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from poslab.config import rules
from poslab.config.identity import flat
from poslab.errors import ConfigError, DataWorkerError, DivergedError, LostFolderError, lacks_memory


def debugging() -> bool:
    """Whether the person asked for whole tracebacks."""
    return os.environ.get("POSLAB_DEBUG", "0") not in ("", "0")


def main_config_dir(config: DictConfig) -> Path:
    """The folder of the program's own configuration."""
    sources = OmegaConf.select(config, "hydra.runtime.config_sources") or []
    return next((Path(source.path) for source in sources if source.provider == "main"), Path("conf"))


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
RESUME_HINT = (
    "what was saved is kept, and the same command with resume=auto and hydra.run.dir=<its folder> resumes the run"
)
LONGEST_LINE = 1000
"""Of an error message, in characters."""


def explain(error: BaseException, config_dir: Path) -> str:
    """One line for an error: what is wrong, which values, what to do."""
    return one_line(_explain(error, config_dir))


def one_line(text: str) -> str:
    """A text on one line, with unprintable characters escaped; a very long text without its middle."""
    words = " ".join(text.split())
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in words)
    if len(shown) <= LONGEST_LINE:
        return shown
    return f"{shown[: LONGEST_LINE // 2]} ... {shown[-LONGEST_LINE // 2 :]}"


def _explain(error: BaseException, config_dir: Path) -> str:
    if isinstance(error, MissingConfigException):
        return _explain_choice(str(error), config_dir)
    line = " ".join(str(error).split())
    if lacks_memory(error) and not isinstance(error, ConfigError):
        return (
            f"out of memory ({line[:160] or type(error).__name__}); use a smaller data.batch_size, "
            f"data.val_batch_size, model or task.length, or free some: {RESUME_HINT}"
        )
    if isinstance(error, OverrideParseException):
        return _explain_override(error)
    if "integer string conversion" in str(error):
        return _explain_digits()
    if "Config group override must be a string or a list" in str(error):
        return _explain_null_choice(config_dir)
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        return _explain_hydra(error, config_dir)
    if not line:
        line = _where(error)
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        what = error.filename or error.filename2
        return f"{error.strerror}{f' for {what}' if what else ''}; make room: {RESUME_HINT}"
    if isinstance(error, (ConfigError, DataWorkerError, DivergedError, LostFolderError, ValueError)) and line:
        return line
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename} cannot be used ({error.strerror}); give another"
    if _raised_by_hydra(error):
        return f"Hydra cannot use what was typed ({type(error).__name__}: {line}); see python train.py --help"
    return f"{type(error).__name__}: {line} (POSLAB_DEBUG=1 shows the traceback)"


def _raised_by_hydra(error: BaseException) -> bool:
    """Whether Hydra itself raised an error: it does not expect every value that its grammar can express."""
    frames = traceback.extract_tb(error.__traceback__)
    package = Path(frames[-1].filename).parts if frames else ()
    return "hydra" in package or "omegaconf" in package


def _where(error: BaseException) -> str:
    """The function that raised an error without a message."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"in {frames[-1].name} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _explain_override(error: OverrideParseException) -> str:
    typed = error.override
    key, equals, value = typed.partition("=")
    if not equals:
        return f"'{typed}' sets nothing; write key=value, for example pos=sinusoidal; see python train.py --help"
    if re.fullmatch(r"[+~]*[A-Za-z_][\w./@:-]*", key, re.ASCII):
        return (
            f"{key}: {value} cannot be read; put a value with other characters in quotes within quotes: \"{key}='...'\""
        )
    return f"'{typed}' cannot be read: '{key}' is not the name of a key; see python train.py --help"


def _explain_digits() -> str:
    """Name the number that was too long to read; Python's error does not, so look for it in the typed words."""
    typed = next((one for one in sys.argv[1:] if re.search(r"\d{4300}", one)), "a value")
    return f"{typed.partition('=')[0]} is a number of {len(typed.partition('=')[2])} digits; give a shorter one"


def _explain_choice(text: str, config_dir: Path) -> str:
    """Put Hydra's "Could not find" and its list of choices on one line, with the nearest name."""
    wanted = re.search(r"Could not (?:find|load) '([^']+)'|Cannot find primary config '([^']+)'", text)
    offered = text.partition("Available options in")[2].partition("Config search path")[0]
    listed = [line.strip() for line in offered.splitlines()[1:] if line.strip()]
    if not wanted:
        return " ".join(text.split())
    group, _, choice = (wanted.group(1) or wanted.group(2)).rpartition("/")
    if not group:
        return f"unknown configuration '{choice}'{rules.did_you_mean(choice, listed)}"
    # Hydra's error has no list if the choice is one of several (diagnostics=[a,b]).
    options = listed or _choices(group, config_dir)
    near = rules.nearest(choice, options)
    hint = f"; did you mean '{near}'?" if near else ""
    return f"unknown choice {group}={choice}{hint}; choices: {', '.join(options)}"


def _explain_null_choice(config_dir: Path) -> str:
    """Name the group that was given no name; Hydra's error does not, so look for it in the typed words."""
    for typed in sys.argv[1:]:
        group, _, values = typed.lstrip("+").partition("=")
        wrong = next((value for value in values.split(",") if re.fullmatch(r"null|true|false|[\d.e+-]+", value)), None)
        if wrong is not None and (choices := _choices(group, config_dir)):
            return f"{group}={wrong} chooses nothing; choices: {', '.join(choices)}"
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
    if wrong := _wrong_type(text, full_key):
        return wrong
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


KINDS = {"Integer": "is not a whole number, such as 1", "Float": "is not a number, such as 0.1"}


def _wrong_type(text: str, full_key: str | None) -> str | None:
    """Name a setting whose value is of another type than its own; OmegaConf names its own types."""
    typed = re.search(r"Error merging override [+~]*([^\s=]+)=", text)
    key = full_key or (typed and typed.group(1))
    if key is None:
        return None
    if re.search("field '[^']*' is not Optional", text):
        return f"{key}=null: this setting needs a value; leave it out to keep its default"
    if converted := re.search(r"Value '(.*)' of type '.*' could not be converted to (Integer|Float)", text):
        return f"{key}={converted.group(1)} {KINDS[converted.group(2)]}"
    if switch := re.search(r"Value '(.*)' is not a valid bool", text):
        return f"{key}={switch.group(1)} is neither true nor false"
    return f"{key} is a list; write {key}=[..]" if "is not a ListConfig" in text else None


def _nearest_key(name: str, config_dir: Path) -> str:
    """A hint at the most similar key of the default configuration and the groups."""
    # Another option may have the key that was typed.
    keys = [key for key in _known_keys(config_dir) if key != name]
    prefix, _, leaf = name.rpartition(".")
    siblings = {key.rpartition(".")[2]: key for key in keys if key.rpartition(".")[0] == prefix}
    # First the same name under a missing or wrong prefix (d_model for model.d_model), then a similar one beside it.
    nearest = next((key for key in keys if key.rpartition(".")[2] == leaf), None)
    nearest = nearest or siblings.get(rules.nearest(leaf, siblings) or "")
    if not nearest and not siblings:
        nearest = rules.nearest(name, keys)
    if nearest:
        return f"; did you mean '{nearest}'?"
    if not siblings:
        return "; see python train.py --help"
    return f"; {f'under {prefix!r} ' if prefix else ''}there are: {', '.join(sorted(siblings))}"


def _known_keys(config_dir: Path) -> list[str]:
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    groups = {path.name for path in config_dir.iterdir() if path.is_dir()}
    # With the choices that were typed: pos=sinusoidal has other keys than the default.
    chosen = [one for one in sys.argv[1:] if one.partition("=")[0] in groups]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_dir.resolve()), version_base="1.3"):
        try:
            default = OmegaConf.to_container(compose("train", overrides=chosen))
        except Exception:
            default = OmegaConf.to_container(compose("train"))
    # Each setting after the parts that hold it: model, model.d_model.
    assert isinstance(default, dict)
    named = flat({str(key): value for key, value in default.items()})
    keys = dict.fromkeys(part for key in named for part in accumulate(key.split("."), "{}.{}".format))
    return [*keys, *(path.name for path in config_dir.iterdir() if path.is_dir())]
