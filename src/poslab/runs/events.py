"""TensorBoard's event files: cut back to the state of a checkpoint."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from poslab.runs.checkpoint import Saved
from poslab.runs.names import COPIES, EVENTS
from poslab.system.files import write_atomically


def keep_events(folder: Path, saved: Saved | None) -> None:
    """Leave of TensorBoard's files, also those of the copies of a bundle, what was there when a checkpoint was saved.

    Whatever came after it is about to come again, and a step that is shown twice runs back on itself. Without a
    checkpoint everything will. Pictures are drawn beside the training: one of an earlier step that came late stays.
    """
    if saved is not None and saved.events is None:
        return

    for path in [*folder.glob(EVENTS), *folder.glob(f"{COPIES}/*/{EVENTS}")]:
        size = 0 if saved is None or saved.events is None else saved.events.get(path.relative_to(folder).as_posix(), 0)
        cut_events(path, size, 0 if saved is None else saved.step)


def event_sizes(folder: Path) -> dict[str, int]:
    """The size of each of TensorBoard's files in a run folder, in bytes, by path in the folder."""
    paths = [*folder.glob(EVENTS), *folder.glob(f"{COPIES}/*/{EVENTS}")]
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(paths)}


def cut_events(path: Path, size: int, step: int) -> None:
    """Leave of an event file its first ``size`` bytes and, of the rest, the pictures of steps before ``step``.

    One that nothing is left of is removed.
    """
    content = path.read_bytes()
    if len(content) <= size:
        return
    # The pictures alone: the tail begins where a record does.
    late = b"".join(
        raw
        for raw, event in records(content[size:])
        if event.step < step and holds(event, lambda value: value.image.height)
    )
    if size or late:
        write_atomically(path, content[:size] + late)
    else:
        path.unlink()


def forget_session(folder: Path) -> None:
    """Take the HParams record out of a stopped run's events: of two, TensorBoard shows the first, a failure."""
    for path in folder.glob(EVENTS):
        content = path.read_bytes()
        kept = [
            raw for raw, event in records(content) if not holds(event, lambda value: value.tag.startswith("_hparams_/"))
        ]
        write_atomically(path, b"".join(kept))


def holds(event: Any, wanted: Callable[[Any], Any]) -> bool:
    """Whether one of an event's values is of a kind."""
    return any(wanted(value) for value in event.summary.value)


def records(content: bytes) -> Iterator[tuple[bytes, Any]]:
    """The whole records of an event file, as they are and parsed; a last one that was cut short is left out.

    A record is the length n of its event (8 bytes, little endian), a checksum (4), the event (n) and a checksum (4).
    """
    from tensorboard.compat.proto.event_pb2 import Event

    at = 0
    while at + 12 <= len(content):
        end = at + 16 + int.from_bytes(content[at : at + 8], "little")
        if end > len(content):
            return
        yield content[at:end], Event.FromString(content[at + 12 : end - 4])
        at = end
