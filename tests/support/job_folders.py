"""Writes folders of jobs without training, for the comparison to read."""

import csv
import json
import math
import random
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TARGETS = {"pos": "poslab.positions.{0}.Scheme", "task": "poslab.tasks.{0}.Task"}


PARTS = {"token_embedding": 2080, "position": 384, "attention": 4224, "head": 2145}


def png(width: int = 60, height: int = 40, size: int = 0) -> bytes:
    """A white picture, blown up to about ``size`` bytes by a chunk that nobody reads."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    rows = b"".join(b"\x00" + b"\xff" * width for _ in range(height))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    padding = chunk(b"teSt", random.Random(0).randbytes(size)) if size else b""
    return b"\x89PNG\r\n\x1a\n" + header + padding + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def config(**settings: Any) -> dict[str, Any]:
    """A nested configuration; ``model__n_heads=4`` sets ``model.n_heads``, ``pos="learned"`` names a class."""
    nested: dict[str, Any] = {
        "defaults": ["schema"],
        "seed": 1,
        "pos": {"_target_": TARGETS["pos"].format("learned")},
        "task": {"_target_": TARGETS["task"].format("copy"), "length": 6},
        "model": {"d_model": 32, "n_heads": 4, "token_file": None, "tie_embeddings": False},
        "optimizer": {"lr": 0.005, "betas": [0.9, 0.999]},
        "diagnostics": {"heads": {"_target_": "poslab.diagnostics.heads.HeadMaps", "every": 1}},
        "logger": {"tensorboard": True},
    }
    for key, value in settings.items():
        part, _, leaf = key.partition("__")
        if leaf:
            nested[part][leaf] = value
        elif part in TARGETS:
            nested[part] = {"_target_": TARGETS[part].format(value)}
        else:
            nested[part] = value
    return nested


def write_job(
    folder: Path,
    *,
    status: str = "completed",
    error: str | None = None,
    steps_to_99: float | None = 240,
    every: int = 20,
    last: int = 800,
    loss: float = 0.002,
    metrics: Mapping[str, float] | None = None,
    pictures: int = 0,
    wall_seconds: float = 3.0,
    overrides: list[str] | None = None,
    **settings: Any,
) -> Path:
    """A run folder as `poslab.runs` describes it; it learns until ``steps_to_99``, or never where that is None."""
    folder.mkdir(parents=True)
    content = config(**settings)
    # JSON is YAML.
    (folder / "config.yaml").write_text(json.dumps(content))
    middle = last * 10 if steps_to_99 is None else steps_to_99
    rows = []
    for step in range(0, last + 1, every):
        exact = 1.0 if step >= middle else min(0.98, 0.5 * (step / middle) ** 4)
        value = loss if step >= last else max(loss, 4.16 * math.exp(-5 * step / middle))
        rows.append([step, value * 1.1, exact, min(1.0, exact**0.2), value])
    with open(folder / "metrics.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["step", "train/loss", "val/exact_match", "val/accuracy", "val/loss"])
        table.writerows(rows)
    final = dict(zip(["train/loss", "val/exact_match", "val/accuracy", "val/loss"], rows[-1][1:], strict=True))
    final |= {f"best/{name}": value for name, value in final.items() if name.startswith("val/")}
    final |= {"neighbour_similarity/offset_1": 0.95, "neighbour_similarity/offset_2": 0.8} | dict(metrics or {})
    result = {
        "status": status,
        "error": error,
        "metrics": final if status == "completed" else {},
        "parameters": {"total": sum(PARTS.values()), **PARTS},
        "overrides": overrides or [f"seed={content['seed']}"],
        "seed": content["seed"],
        "wall_seconds": wall_seconds,
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
    }
    (folder / "result.json").write_text(json.dumps(result))
    if pictures:
        (folder / "figures").mkdir()
        for name in ("heads_layer_0", "neighbour_similarity_curve"):
            (folder / "figures" / f"{name}.png").write_bytes(png(size=pictures))
    return folder
