"""A process that has imported everything and forks a child for each run, so that a run starts at once.

Reads one request a line from standard input, runs it and answers by one line: the child's exit code, or minus the
signal that ended it. A child is a process like the one that a person starts: it gets its arguments, its folder, its
environment, its output, and, before the program runs, the fault that the request asks for.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import injections

ROOT = Path(__file__).resolve().parents[2]


def become(request: dict[str, Any]) -> None:
    """Turn this forked process into the one that was asked for, and end it as Python would."""
    # A group of its own: a fault may take the drawing child with it, as the end of a machine would.
    os.setsid()
    for number, name in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
        target = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(target, number)
        os.close(target)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    code: Any = 0
    try:
        os.environ.update(request["environment"])
        for name in request["without"]:
            os.environ.pop(name, None)
        os.chdir(request["folder"])
        sys.argv = [request["script"], *request["arguments"]]
        for name, options in request["faults"].items():
            getattr(injections, name)(**options)
        runpy.run_path(str(ROOT / request["script"]), run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
        code = 1
    atexit._run_exitfuncs()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(code or 0)


def wait_for(child: int, seconds: float) -> int:
    """The exit code of a child; one that takes too long is ended, with all that it started."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    import torch.utils.tensorboard  # noqa: F401

    import poslab.experiment.run
    import poslab.preflight.checks
    import poslab.trained  # noqa: F401

    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            answers.close()
            become(request)
        answers.write(f"{wait_for(child, request['timeout'])}\n")
        answers.flush()


if __name__ == "__main__":
    main()
