"""Cuts TensorBoard's event files back to the state of a checkpoint."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from poslab.runs.checkpoint import Saved
from poslab.runs.names import COPIES, EVENTS
from poslab.system.files import write_atomically


def keep_events(folder: Path, saved: Saved | None) -> None:
    """Cut the event files of a run and of its replicas back to what they contained when a checkpoint was saved.

    A resumed run logs the later steps again, and TensorBoard would draw a curve with repeated steps as a zigzag.
    Without a checkpoint everything is removed. Pictures of earlier steps are kept: they are drawn while training
    continues, so they may be written after the checkpoint.
    """
    if saved is not None and saved.events is None:
        return
    for path in [*folder.glob(EVENTS), *folder.glob(f"{COPIES}/*/{EVENTS}")]:
        size = 0 if saved is None or saved.events is None else saved.events.get(path.relative_to(folder).as_posix(), 0)
        cut_events(path, size, 0 if saved is None else saved.step)


def event_sizes(folder: Path) -> dict[str, int]:
    """The size in bytes of each event file in a run folder, by path in the folder."""
    paths = [*folder.glob(EVENTS), *folder.glob(f"{COPIES}/*/{EVENTS}")]
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(paths)}


def cut_events(path: Path, size: int, step: int) -> None:
    """Keep the first ``size`` bytes of an event file and, of the rest, the pictures of steps before ``step``.

    The file is removed if nothing remains.
    """
    content = path.read_bytes()
    if len(content) <= size:
        return
    # The rest starts with a whole record, because the size was taken between two writes.
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
    """Remove the HParams record of a stopped run: of two records TensorBoard shows the first, which says failed."""
    for path in folder.glob(EVENTS):
        content = path.read_bytes()
        kept = [
            raw for raw, event in records(content) if not holds(event, lambda value: value.tag.startswith("_hparams_/"))
        ]
        write_atomically(path, b"".join(kept))


def holds(event: Any, wanted: Callable[[Any], Any]) -> bool:
    """Whether ``wanted`` is true of one of an event's values."""
    return any(wanted(value) for value in event.summary.value)


def records(content: bytes) -> Iterator[tuple[bytes, Any]]:
    """Yield each complete record of an event file as bytes and as a parsed event; skip a last one that is cut short.

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
