"""A limit on the time that a part of a test may take."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def in_time(seconds: int) -> Iterator[None]:
    """Fail instead of waiting for ever."""

    def end(number: int, frame: object) -> None:
        raise AssertionError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
