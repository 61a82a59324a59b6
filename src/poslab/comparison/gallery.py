"""The page's section with the last head maps and similarity curves of several settings."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from poslab.comparison.collect import Job
from poslab.comparison.numbers import count
from poslab.comparison.settings import Setting
from poslab.system.reading import read_bytes

PATTERNS = (("heads_layer_*.png", "attention weights of every head"), ("neighbour_similarity_curve.png", "similarity"))
MOST_JOBS = 12
MOST_PER_PATTERN = 4
MOST_BYTES = 5_000_000
"""Largest total size of the pictures, before base64 encoding adds a third."""

_PNG_START, _PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"


def gallery(settings: Sequence[Setting]) -> str:
    """HTML with the pictures of the first job of each setting; empty if no job has pictures.

    With more than `MOST_JOBS` settings, evenly spaced ones are chosen.
    """
    available = [(setting, setting.jobs[0]) for setting in settings if setting.jobs and _has_pictures(setting.jobs[0])]
    if not available:
        return ""
    chosen = available
    if len(available) > MOST_JOBS:
        chosen = [available[round(at * (len(available) - 1) / (MOST_JOBS - 1))] for at in range(MOST_JOBS)]
    cards, bytes_left, dropped = [], MOST_BYTES, 0
    for setting, job in chosen:
        images = []
        for path, what in _pictures(job):
            image = _image(path, f"{what}, {setting.label}", bytes_left)
            if image is None:
                dropped += 1
            else:
                images.append(image[0])
                bytes_left -= image[1]
        if images:
            seed = "" if job.seed is None else f"seed {job.seed}, "
            caption = f"<figcaption>{escape(setting.label)}<span>{seed}{escape(job.name)}</span></figcaption>"
            cards.append(f"<figure>{caption}{''.join(images)}</figure>")
    lead = "The pictures at the end of the run, for the first seed of each setting."
    if len(chosen) < len(available):
        lead += (
            f" {len(chosen)} of {len(available)} settings, evenly chosen; the others are left out to keep this file "
            "small."
        )
    if dropped:
        lead += f" {count(dropped, 'picture')} left out: broken, or too large for this file."
    lead += " The pictures of every job are in its folder figures."
    return f'<p class="lead">{lead}</p>\n<div class="gallery">\n{"".join(cards)}\n</div>' if cards else ""


def _has_pictures(job: Job) -> bool:
    return any(job.pictures(pattern) for pattern, _ in PATTERNS)


def _pictures(job: Job) -> list[tuple[Path, str]]:
    return [(path, what) for pattern, what in PATTERNS for path in job.pictures(pattern)[:MOST_PER_PATTERN]]


def _image(path: Path, alt: str, most_bytes: int) -> tuple[str, int] | None:
    """An image element and the size of its picture in bytes; None if it is broken or larger than ``most_bytes``."""
    try:
        content = read_bytes(path, most_bytes)
    except OSError:
        return None
    if not (content.startswith(_PNG_START) and content.endswith(_PNG_END)):
        return None
    return png_element(content, alt), len(content)


def png_element(content: bytes, alt: str) -> str:
    """An HTML image element with the PNG embedded as base64."""
    # Width and height from the PNG header, so that the page layout does not change while it loads.
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    source = base64.b64encode(content).decode()
    return f'<img src="data:image/png;base64,{source}" width="{width}" height="{height}" alt="{escape(alt)}">'
