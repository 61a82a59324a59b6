"""Reads what a run has shown in TensorBoard."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

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


EPOCHS = [0, 120, 240, 360]


PARTS = ("total", "token_embedding", "position", "attention", "head")


def text(events: EventAccumulator, tag: str) -> str:
    (shown,) = events.Tensors(f"{tag}/text_summary")
    assert shown.step == 0
    return str(shown.tensor_proto.string_val[0].decode())


def session(events: EventAccumulator) -> dict[str, HParamsPluginData]:
    """The three parts of the HParams record: experiment, session_start_info, session_end_info."""
    contents = events.PluginTagToContent("hparams")
    return {tag.removeprefix("_hparams_/"): HParamsPluginData.FromString(part) for tag, part in contents.items()}


def event_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*tfevents*"))
