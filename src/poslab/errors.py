"""Every error that poslab raises on purpose."""

import signal
from typing import Any


class ConfigError(ValueError):
    """A configuration that cannot be run; the message is one line that names the values and the way out."""


SIGNAL_NAMES = {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGUSR1": "SIGUSR1", "SIGUSR2": "SIGUSR2"}
"""The signals that ask for a stop, and how messages call them."""
# 130 is the shells' convention for Ctrl-C; schedulers know 143 for the others.
CTRL_C_CODE, OTHERS_CODE = 130, 143


class StoppedError(SystemExit):
    """A signal stopped the run; ends the process with exit code 130 (Ctrl-C) or 143.

    Args:
        number: of the signal.
        at_once: the signal came a second time, so the run did not finish its step.
    """

    def __init__(self, number: int, at_once: bool = False) -> None:
        super().__init__(CTRL_C_CODE if number == signal.SIGINT else OTHERS_CODE)
        self.number = number
        self.at_once = at_once

    def __str__(self) -> str:
        name = SIGNAL_NAMES[signal.Signals(self.number).name]
        return f"stopped at once by a second {name}" if self.at_once else f"stopped by {name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.number, self.at_once)


class DivergedError(RuntimeError):
    """The loss became NaN or infinite."""


class LostFolderError(RuntimeError):
    """The run's folder was removed during the run."""


class LostRankError(RuntimeError):
    """One rank of the run ended before the others."""


class DataWorkerError(RuntimeError):
    """The data workers send no batches; the message is one line that names the reason and the way out."""


class PrunedError(RuntimeError):
    """The search pruned this trial."""


class LostJobError(RuntimeError):
    """The process of a job ended without a result."""


class ComparisonError(ValueError):
    """There is nothing to compare; the message is one line that names the folders and the way out."""


NO_MEMORY = ("can't allocate memory", "out of memory", "Cannot allocate memory", "not enough memory")
"""What torch says on a CPU and on an accelerator; Python has a MemoryError."""


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that memory could not be had."""
    return isinstance(error, MemoryError) or any(said in str(error) for said in NO_MEMORY)


def described(error: BaseException) -> str:
    """One line for ``result.json``: the kind of an error, and its message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
