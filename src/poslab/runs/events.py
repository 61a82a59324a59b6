"""Cuts TensorBoard's event files back to the state of a checkpoint."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from poslab.runs.checkpoint import Saved
from poslab.runs.names import COPIES, EVENTS
from poslab.system.files import MISSING, read_file, write_atomically

log = logging.getLogger(__name__)


def keep_events(folder: Path, saved: Saved | None) -> list[Path]:
    """Cut the event files of a run and of its replicas back to what they contained when a checkpoint was saved.

    A resumed run logs the later steps again, and TensorBoard would draw a curve with repeated steps as a zigzag.
    Without a checkpoint everything is removed. Pictures of earlier steps are kept: they are drawn while training
    continues, so they may be written after the checkpoint.

    Returns:
        the folders whose event files have lost something from before the checkpoint. Of these files only whole pictures
        remain, and the curves have to be written again.
    """
    if saved is not None and saved.events is None:
        return []
    sizes = {} if saved is None or saved.events is None else {folder / name: n for name, n in saved.events.items()}
    damaged = sorted(path for path, size in sizes.items() if not is_whole(path, size))
    rebuilt = {path.parent for path in damaged}
    for path in damaged:
        log.warning(
            "%s is missing or damaged; its curves are written again, and pictures of earlier steps may be lost", path
        )
    for path in [*folder.glob(EVENTS), *folder.glob(f"{COPIES}/*/{EVENTS}")]:
        cut_events(path, sizes.get(path, 0), 0 if saved is None else saved.step, path.parent in rebuilt)
    return sorted(rebuilt)


def is_whole(path: Path, size: int) -> bool:
    """Whether the first ``size`` bytes of an event file are there and are whole records.

    Raises:
        ConfigError: it cannot be read now.
    """
    try:
        content = read_file(path)[:size]
    except MISSING:
        return False
    return sum(len(raw) for raw, _ in records(content)) == size


def event_sizes(folder: Path) -> dict[str, int]:
    """The size in bytes of each event file in a run folder, by path in the folder."""
    paths = [*folder.glob(EVENTS), *folder.glob(f"{COPIES}/*/{EVENTS}")]
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(paths)}


def cut_events(path: Path, size: int, step: int, only_pictures: bool = False) -> None:
    """Keep the first ``size`` bytes of an event file and, of the rest, the pictures of steps before ``step``.

    The file is removed if nothing remains.

    Args:
        path: of the file.
        size: what it contained when the checkpoint was saved.
        step: of the checkpoint.
        only_pictures: keep only whole pictures of the first part.
    """
    content = read_file(path)
    if len(content) <= size and not only_pictures:
        return
    early = b"".join(raw for raw, event in records(content[:size]) if is_picture(event)) if only_pictures else b""
    # The rest starts with a whole record, because the size was taken between two writes.
    late = b"".join(raw for raw, event in records(content[size:]) if event.step < step and is_picture(event))
    kept = (early if only_pictures else content[:size]) + late
    if kept:
        write_atomically(path, kept)
    else:
        path.unlink()


def is_picture(event: Any) -> bool:
    """Whether a record contains a picture."""
    return holds(event, lambda value: value.image.height)


def forget_session(folder: Path) -> None:
    """Remove the HParams record of a stopped run: of two records TensorBoard shows the first, which says failed."""
    for path in folder.glob(EVENTS):
        content = read_file(path)
        kept = [
            raw for raw, event in records(content) if not holds(event, lambda value: value.tag.startswith("_hparams_/"))
        ]
        write_atomically(path, b"".join(kept))


def holds(event: Any, wanted: Callable[[Any], Any]) -> bool:
    """Whether ``wanted`` is true of one of an event's values."""
    return any(wanted(value) for value in event.summary.value)


def records(content: bytes) -> Iterator[tuple[bytes, Any]]:
    """Yield each record of an event file as bytes and as a parsed event, up to the first one that is cut or damaged.

    A record is the length n of its event (8 bytes, little endian), a checksum (4), the event (n) and a checksum (4).
    """
    from tensorboard.compat.proto.event_pb2 import Event

    at = 0
    while at + 12 <= len(content):
        begin, end = at + 12, at + 16 + int.from_bytes(content[at : at + 8], "little")
        if end > len(content) or not (has_checksum(content, at, at + 8) and has_checksum(content, begin, end - 4)):
            return
        yield content[at:end], Event.FromString(content[begin : end - 4])
        at = end


def has_checksum(content: bytes, begin: int, end: int) -> bool:
    """Whether a part of an event file is followed by its checksum, a CRC-32C that TensorFlow rotates and shifts."""
    import google_crc32c

    crc = google_crc32c.value(content[begin:end])
    return content[end : end + 4] == (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")
