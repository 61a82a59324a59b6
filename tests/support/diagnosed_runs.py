"""Runs of one epoch with diagnostics, and the pictures that they order and leave."""

from pathlib import Path

from support.event_files import IMAGES
from support.runs import SMALL

ONE_EPOCH = (*SMALL, "trainer.max_epochs=1")


FILES = {f"{tag.replace('/', '_')}.png" for tag in IMAGES}


def figures(folder: Path) -> set[str]:
    return {path.name for path in (folder / "figures").glob("*")}
