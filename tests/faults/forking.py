"""Runs the product's commands hundreds of times a minute: each in a child that is forked when everything is imported.

A child runs the program's file as ``__main__`` with its own arguments, folder, output and memory limit, so that only
the seconds of the imports are saved. `CommandServer` is the side of the tests; ``python forking.py`` is the process
that forks, which answers a line of JSON for every line of JSON.
"""

import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MEMORY = 4 * 2**30
"""Address space of a child in bytes: what asks for more is told so by the system, and the machine is left in peace."""
SECONDS = 30.0
GRACE = 20.0
"""Seconds that a child has between SIGTERM and SIGKILL."""
WARM = [
    "train.py",
    "trainer.max_steps=1",
    "data.val_examples=2",
    "task.length=2",
    "task.min_length=1",
    "hydra.run.dir=warm",
]


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: exit code; negative: the signal that killed it.
        stdout, stderr: what it said.
        stopped: it was still going after its time and was sent SIGTERM.
        killed: it did not end for that, and was killed.
        seconds: that it took.
    """

    code: int
    stdout: str
    stderr: str
    stopped: bool
    killed: bool
    seconds: float


class CommandServer:
    """A process that has imported everything and forks a child for each command."""

    def __init__(self, folder: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in ("POSLAB_DEBUG", "COLUMNS")}
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            cwd=folder,
            env={**environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, words: Sequence[str], folder: Path, seconds: float = SECONDS, memory: int = MEMORY) -> Ended:
        """``python`` with these words, the program's file name first, in a folder.

        Args:
            words: ``train.py`` and what is typed behind it.
            folder: the working folder.
            seconds: until it is sent SIGTERM.
            memory: bytes of address space.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"words": list(words), "folder": str(folder), "seconds": seconds, "memory": memory}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the process that forks has ended"
        return Ended(**json.loads(answer))

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


def serve() -> None:
    """Answer requests until the input ends."""
    # Its own copy: what a child prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    import_what_is_used()
    for line in sys.stdin:
        ended = run_in_child(**json.loads(line))
        answers.write(json.dumps(vars(ended)) + "\n")
        answers.flush()


def import_what_is_used() -> None:
    """Import what runs and sweeps import, by letting a child have a run: this process itself stays as new."""
    for name in ("experiment.run", "sweeps.sweep", "comparison", "trained", "evaluation.generation"):
        import_module(f"poslab.{name}")
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder) / "names"
        ended = run_in_child(WARM, folder, 300.0, MEMORY, names=names)
        assert ended.code == 0, ended.stderr
        for name in json.loads(names.read_text(encoding="utf-8")):
            if name != "__main__":
                with suppress(Exception):
                    import_module(name)
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from matplotlib import font_manager

    font_manager.findfont("DejaVu Sans")
    # Fills the caches of Hydra's grammar, which are most of a refusal's time.
    OverridesParser.create().parse_overrides(["a=[1,'b c',{d:e}]", "+a.b=0.5", "++a=${b:c}", "~a", "a/b@c=x/y,-1,null"])
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        compose("train", overrides=["pos=none", "seed=1"])
    GlobalHydra.instance().clear()


def run_in_child(words: list[str], folder: str, seconds: float, memory: int, names: Path | None = None) -> Ended:
    """Fork, run, wait.

    Args:
        words, folder, seconds, memory: as `CommandServer.run` has them.
        names: a file for the names of the modules that the child has at its end.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            for file, descriptor in ((out, 1), (err, 2)):
                os.dup2(file.fileno(), descriptor)
            os._exit(as_main(words, folder, memory, names))
        code, stopped, killed = await_end(pid, seconds)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "backslashreplace"))
    return Ended(code, texts[0], texts[1], stopped, killed, round(time.monotonic() - began, 3))


def as_main(words: list[str], folder: str, memory: int, names: Path | None) -> int:
    """Run a program's file as Python would; returns the exit code."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    os.chdir(folder)
    sys.argv = [str(ROOT / words[0]), *words[1:]]
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)  # noqa: T201 - as Python does
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    if names is not None:
        names.write_text(json.dumps(list(sys.modules)), encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    return code


def await_end(pid: int, seconds: float) -> tuple[int, bool, bool]:
    """Its exit code, whether it was sent SIGTERM for its time was over, and whether it had to be killed."""
    stopped = killed = False
    deadline = time.monotonic() + seconds
    pause = 0.002
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            if stopped:
                killed = True
                os.kill(pid, signal.SIGKILL)
            else:
                stopped = True
                os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + GRACE
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)
    # What it may have started itself.
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status), stopped, killed


if __name__ == "__main__":
    serve()
