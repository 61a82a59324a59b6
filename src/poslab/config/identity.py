"""Which settings decide a job's result, and the names that follow from them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from poslab.config.schema import TrainConfig


def flat(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as ``a.b.c`` to value."""
    result: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, dict):
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = value
    return result


def choice_of(target: str) -> str:
    """What is typed for a class, ``pos=sinusoidal``: its module's name, for there is one file per scheme and task."""
    return str(target).split(".")[-2:][0]


# What a run shows and how fast it goes, not what it computes: free to change from one start to the next.
PRESENTATION = (
    "resume",
    "ckpt_path",
    "sweep",
    "diagnostics",
    "logger",
    "trainer.progress_bar",
    "trainer.threads",
    "compile",
    "trainer.checkpoint_every_n_steps",
    "trainer.checkpoint_every_minutes",
    "data.num_workers",
)

# Settings that came later: with this value a run is the one that older versions made without them.
ALWAYS_SO = {"seeds": 1, "deterministic": False, "trainer.num_nodes": 1}


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide the result, flat; two runs that agree in them are the same run."""
    return {
        key: value
        for key, value in flat(dict(settings)).items()
        if key != "defaults"
        and not any(key == part or key.startswith(f"{part}.") for part in PRESENTATION)
        and not (key in ALWAYS_SO and value == ALWAYS_SO[key])
    }


def model_settings(job: TrainConfig) -> dict[str, Any]:
    """The settings that the model is built from, flat: with others a checkpoint is another model's, even if it fits."""
    return flat({part: settings for part, settings in asdict(job).items() if part in ("pos", "task", "model")})


def job_key(job: TrainConfig) -> str:
    """A short name for the settings that decide the result: the same for the same job in every sweep."""
    text = json.dumps(identity(asdict(job)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Each setting that differs, as ``optimizer.lr was 0.005 and is 0.001``; empty where none does."""
    missing = "not set"
    return "; ".join(
        f"{key} was {before.get(key, missing)} and is {now.get(key, missing)}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key, missing) != now.get(key, missing)
    )


# What decides no copy's result.
NO_HPARAMS = ("diagnostics", "logger", "resume", "ckpt_path", "sweep", "seeds")
