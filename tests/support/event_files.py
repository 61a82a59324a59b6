"""Reads what a run has shown in TensorBoard."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

IMAGES = {
    "neighbour_similarity/curve",
    "neighbour_similarity/matrix",
    "positions/table",
    "heads/layer_0",
    "head_roles/summary",
    "embedding_gradient/vocabulary",
}


def read(folder: Path) -> EventAccumulator:
    """Everything in a run's event files."""
    events = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0, "tensors": 0})
    events.Reload()
    return events


def steps(events: EventAccumulator, tag: str) -> list[int]:
    """The steps at which a scalar or image was shown."""
    shown = events.Images(tag) if tag in events.Tags()["images"] else events.Scalars(tag)
    return [event.step for event in shown]


def values(events: EventAccumulator, tag: str) -> list[float]:
    return [event.value for event in events.Scalars(tag)]
