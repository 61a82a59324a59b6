"""The faults, as what a child does to itself before the program runs. Each function is one; its arguments are plain."""

import builtins
import contextlib
import importlib
import itertools
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Where a run can be hit: each call of one of these is a point, before it begins and, for some, after it has ended.
CALLS = {
    "claim": ("poslab.runs.folder", "RunFolder.claim"),
    "start": ("poslab.experiment.run", "build_trainer"),
    "step": ("torch.optim.adam", "Adam.step"),
    "loss": ("poslab.training.learner", "token_loss"),
    "validation": ("poslab.training.module", "TrainingModule.validation_step"),
    "report": ("poslab.training.module", "TrainingModule._report_validation"),
    "checkpoint": ("poslab.training.checkpoints", "Checkpoints._save"),
    "write": ("poslab.training.checkpoints", "DurableFiles.save_checkpoint"),
    "serialise": ("torch", "save"),
    "figure": ("poslab.pictures.drawing", "draw"),
    "fork": ("poslab.pictures.drawing", "DrawingProcess.__init__"),
    "send": ("poslab.pictures.drawing", "DrawingProcess.send"),
    "collect": ("poslab.pictures.drawing", "DrawingProcess.collect"),
    "picture": ("poslab.runs.tensorboard", "RunTensorBoard.log_png"),
    "event": ("tensorboard.summary.writer.event_file_writer", "EventFileWriter.add_event"),
    "flush": ("tensorboard.summary.writer.event_file_writer", "EventFileWriter.flush"),
    "table": ("poslab.runs.table", "MetricsTable.save"),
    "session": ("poslab.runs.tensorboard", "RunTensorBoard.log_session"),
    "close": ("poslab.runs.tensorboard", "RunTensorBoard.close"),
    "result": ("poslab.runs.folder", "RunFolder.finish"),
    "report_end": ("poslab.experiment.record", "final_report"),
}


def wrap(module: str, attribute: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a function or method, also where another module of the package has taken it by its name."""
    owner: Any = importlib.import_module(module)
    *parents, name = attribute.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    real = getattr(owner, name)
    replaced = around(real)
    setattr(owner, name, replaced)
    if not parents:
        for other in list(sys.modules.values()):
            if getattr(other, "__name__", "").startswith("poslab") and other.__dict__.get(name) is real:
                setattr(other, name, replaced)


def hit_at(point: str, reached: Callable[[str], None]) -> None:
    """Call ``reached`` whenever the program passes the point: ``NAME before``, ``NAME after`` or ``file``."""
    if point == "file":
        # Each file that is made, opened to be written, renamed or removed below the run's folder.
        here = os.getcwd()

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open":
                writes = isinstance(arguments[1], str) and set(arguments[1]) & set("wxa+")
                if not writes and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
                    return
            elif event not in ("os.rename", "os.remove", "os.mkdir", "os.link"):
                return
            path = arguments[0]
            if isinstance(path, str) and os.path.abspath(path).startswith(here):
                reached(point)

        sys.addaudithook(audit)
        return
    name, when = point.split()
    module, attribute = CALLS[name]

    def around(real: Callable[..., Any]) -> Callable[..., Any]:
        def patched(*arguments: Any, **options: Any) -> Any:
            if when == "before":
                reached(point)
            result = real(*arguments, **options)
            if when == "after":
                reached(point)
            return result

        return patched

    wrap(module, attribute, around)


def points() -> list[str]:
    """All of them."""
    return ["file", *(f"{name} {when}" for name in CALLS for when in ("before", "after"))]


def count_points(to: str) -> None:
    """Leave in a file how often each point is passed by the main process of the run."""
    counts: Counter[str] = Counter()
    main = os.getpid()

    def reached(point: str) -> None:
        if os.getpid() == main:
            counts[point] += 1

    import atexit

    atexit.register(lambda: os.getpid() == main and Path(to).write_text(json.dumps(counts)))
    for point in points():
        hit_at(point, reached)


def die(whole: bool = False) -> None:
    """Without any clean-up; ``whole``: with every process that this one has started."""
    if whole:
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def kill_at(point: str, number: int, whole: bool = False, child: bool = False) -> None:
    """Die when the point is passed for the given time (from 1); ``child``: only a forked drawing child does."""
    passed: Counter[str] = Counter()
    main = os.getpid()

    def reached(point: str) -> None:
        if (os.getpid() == main) == child:
            return
        passed[point] += 1
        if passed[point] == number:
            die(whole)

    hit_at(point, reached)


def kill_in_write(n_bytes: int, point: str | None = None, number: int = 1) -> None:
    """Die in the middle of a write, as soon as any file is about to grow beyond ``n_bytes``; only after a point."""
    if point is not None:
        at(point, number, lambda: kill_in_write(n_bytes))
        return
    # Python ignores the signal by default, and then the write fails instead.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))


def kill_after(seconds: float, whole: bool = False) -> None:
    """Die after a time."""
    timer = threading.Timer(seconds, die, [whole])
    timer.daemon = True
    timer.start()


def draw_in_background(whether: bool) -> None:
    """Whatever cores there are."""
    wrap("poslab.pictures.gallery", "allowed_threads", lambda real: lambda: 2 if whether else 1)


def at(point: str, number: int, act: Callable[[], None]) -> None:
    """Do something once, in the main process, when the point is passed for the given time (from 1)."""
    passed: Counter[str] = Counter()
    main = os.getpid()

    def reached(point: str) -> None:
        passed[point] += os.getpid() == main
        if os.getpid() == main and passed[point] == number:
            act()

    hit_at(point, reached)


def fill_disk(point: str, number: int, folder: str, spare: int = 0) -> None:
    """Leave no room on the file system of a folder but ``spare`` bytes."""

    def fill() -> None:
        with open(f"{folder}/ballast", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        if spare:
            os.truncate(f"{folder}/ballast", max(0, os.path.getsize(f"{folder}/ballast") - spare))

    at(point, number, fill)


def remove(point: str, number: int, folder: str) -> None:
    """Remove a folder."""
    at(point, number, lambda: shutil.rmtree(folder))


def fail(point: str, number: int, kind: str, message: str) -> None:
    """Raise an exception."""

    def raise_it() -> None:
        raise getattr(builtins, kind)(message)

    at(point, number, raise_it)


def limit_memory(point: str, number: int, spare: int) -> None:
    """From then on this process can get no more than ``spare`` bytes from the system, and asks for more."""

    def limit() -> None:
        import torch

        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + spare, resource.RLIM_INFINITY))
        torch.ones(4 * spare, dtype=torch.uint8)

    at(point, number, limit)


def poison(number: int) -> None:
    """The loss of one step is no number."""
    calls: list[int] = []

    def around(real: Callable[..., Any]) -> Callable[..., Any]:
        def poisoned(*arguments: Any) -> Any:
            calls.append(1)
            return real(*arguments) * (float("nan") if len(calls) == number else 1.0)

        return poisoned

    wrap("poslab.training.learner", "token_loss", around)


def kill_worker(point: str, number: int) -> None:
    """Kill one of the processes that this one has started, a data worker."""

    def kill() -> None:
        import multiprocessing

        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    at(point, number, kill)


def shift_clock(seconds: float, jumps: int = 0) -> None:
    """The clock is wrong by so much; with ``jumps``, in the other direction after every so many looks at it."""
    looks = itertools.count()
    real = time.time

    def wrong() -> float:
        direction = -1 if jumps and (next(looks) // jumps) % 2 else 1
        return real() + direction * seconds

    time.time = wrong


def break_streams(which: list[int]) -> None:
    """Close the standard streams by number."""
    for number in which:
        os.close(number)


def import_from(folder: str) -> None:
    """Modules in this folder can be imported."""
    sys.path.insert(0, folder)
