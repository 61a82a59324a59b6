"""The last head maps and similarity curves of some jobs, side by side, as part of the page."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from poslab.comparison.collect import Job
from poslab.comparison.numbers import count
from poslab.comparison.settings import Setting

PATTERNS = (("heads_layer_*.png", "attention weights of every head"), ("neighbour_similarity_curve.png", "similarity"))
MOST_JOBS = 12
MOST_PER_PATTERN = 4
MOST_BYTES = 5_000_000
"""Of all pictures together, before base64 makes four bytes of three."""

_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"


def gallery(settings: Sequence[Setting]) -> str:
    """The first job of each setting, evenly chosen where there are too many; empty when no job has a picture."""
    having = [(setting, setting.jobs[0]) for setting in settings if setting.jobs and _has_pictures(setting.jobs[0])]
    if not having:
        return ""
    chosen = having
    if len(having) > MOST_JOBS:
        chosen = [having[round(at * (len(having) - 1) / (MOST_JOBS - 1))] for at in range(MOST_JOBS)]
    cards, room, dropped = [], MOST_BYTES, 0
    for setting, job in chosen:
        images = []
        for path, what in _pictures(job):
            image = _image(path, f"{what}, {setting.label}", room)
            if image is None:
                dropped += 1
            else:
                images.append(image[0])
                room -= image[1]
        if images:
            seed = "" if job.seed is None else f"seed {job.seed}, "
            caption = f"<figcaption>{escape(setting.label)}<span>{seed}{escape(job.name)}</span></figcaption>"
            cards.append(f"<figure>{caption}{''.join(images)}</figure>")
    lead = "As they were at the end of the run, the first seed of each setting."
    if len(chosen) < len(having):
        lead += (
            f" {len(chosen)} of {len(having)} settings, evenly chosen; the others are left out to keep this file small."
        )
    if dropped:
        lead += f" {count(dropped, 'picture')} left out: broken, or too large for this file."
    lead += " Every job has its own in its folder figures."
    return f'<p class="lead">{lead}</p>\n<div class="gallery">\n{"".join(cards)}\n</div>' if cards else ""


def _has_pictures(job: Job) -> bool:
    return any(job.pictures(pattern) for pattern, _ in PATTERNS)


def _pictures(job: Job) -> list[tuple[Path, str]]:
    return [(path, what) for pattern, what in PATTERNS for path in job.pictures(pattern)[:MOST_PER_PATTERN]]


def _image(path: Path, alt: str, room: int) -> tuple[str, int] | None:
    """An image element and the size of its picture; None when it is broken or larger than ``room``."""
    try:
        if path.stat().st_size > room:
            return None
        content = path.read_bytes()
    except OSError:
        return None
    if not (content.startswith(_PNG_START) and content.endswith(_PNG_END)):
        return None
    return png_element(content, alt), len(content)


def png_element(content: bytes, alt: str) -> str:
    """An image element that holds its picture."""
    # From the header, so that the page does not jump while it loads.
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    source = base64.b64encode(content).decode()
    return f'<img src="data:image/png;base64,{source}" width="{width}" height="{height}" alt="{escape(alt)}">'
