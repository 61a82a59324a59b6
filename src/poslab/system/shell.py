"""Commands that a person can paste into a shell, and the paths in what a person has typed.

With ``hydra.job.chdir=true`` a job works in its own folder. Paths are still those of the folder where it was typed.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

_typed_in: Path | None = None


def remember_typed_in(folder: Path | None) -> None:
    """Set the folder in which the command was typed; None: the current one."""
    global _typed_in
    _typed_in = folder


def typed_path(path: str | Path) -> Path:
    """A path as it was typed, usable in the current folder."""
    elsewhere = _typed_in is not None and _typed_in != Path.cwd()
    return _typed_in / path if elsewhere and _typed_in is not None else Path(path)


def shown_path(path: Path) -> Path:
    """A path relative to the folder where the command was typed, if it lies below it."""
    here = _typed_in or Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def shell_quoted(word: str) -> str:
    """A word, quoted for the shell of this system if it needs that."""
    if os.name == "nt":
        # cmd does not know single quotes.
        return subprocess.list2cmdline([word])
    # A word with single quotes is easiest to read in double ones, if nothing in it has a meaning there.
    return f'"{word}"' if "'" in word and not re.search(r'["$`!\\]', word) else shlex.quote(word)


def program(name: str) -> str:
    """How to call a program of this environment: by its name, or by its path if the environment is not active."""
    ours = Path(sys.executable).with_name(name)
    on_path = shutil.which(name)
    active = not ours.exists() or (on_path is not None and Path(on_path).parent.samefile(ours.parent))
    return name if active else shell_quoted(str(shown_path(ours)))


def tensorboard_command(folder: Path) -> str:
    """The command that shows a folder in TensorBoard, with all pictures: by default it keeps ten of a tag."""
    return f"{program('tensorboard')} --logdir {shell_quoted(str(folder))} --samples_per_plugin images=10000"


def commands_for(path: Path) -> list[str]:
    """The commands that use the trained model of a run."""
    commands = []
    for name in ("evaluate.py", "generate.py"):
        # The script lies beside the one that was started, except in a notebook.
        script = typed_path(Path(sys.argv[0]).with_name(name))
        script = shown_path(script) if script.exists() else Path(name)
        commands.append(f"{program('python')} {shell_quoted(str(script))} {shell_quoted(f'run={path}')}")
    return commands
