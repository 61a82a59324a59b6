"""Which settings decide a job's result, and the names that follow from them.

`SETTINGS` is the only list of the settings that are special. A setting that is not in it decides the result.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from poslab.config.schema import TrainConfig

Value = TypeVar("Value")


class Role(Enum):
    """What a setting, or all settings of a part, are for."""

    RESULT = "decides the result"
    TRAINING = "decides how a model starts and trains, and has no effect once the model is trained"
    REPLICAS = "how many seeds are trained together"
    EXECUTION = "how a run is executed: its speed, its progress bar, how often it saves"
    OUTPUT = "what a run writes beside its numbers"
    ORIGIN = "which file a run starts from"
    RESTART = "how a run or a sweep is resumed"
    HYDRA = "how Hydra composes and runs the job"


NOT_IN_IDENTITY = (Role.EXECUTION, Role.OUTPUT, Role.ORIGIN, Role.RESTART, Role.HYDRA)
NO_VALUE = object()


class Setting(NamedTuple):
    """A setting, or a part with all its settings, that is special.

    Attributes:
        role: what it is for.
        before: its value in runs that are older than the setting. With this value a job has the identity that it had
            without the setting.
    """

    role: Role
    before: Any = NO_VALUE


SETTINGS = {
    "defaults": Setting(Role.HYDRA),
    "hydra": Setting(Role.HYDRA),
    "resume": Setting(Role.RESTART),
    "sweep": Setting(Role.RESTART),
    "comparison": Setting(Role.OUTPUT),
    "ckpt_path": Setting(Role.ORIGIN),
    "init_from": Setting(Role.ORIGIN),
    "init_from_sha256": Setting(Role.RESULT, before=None),
    "diagnostics": Setting(Role.OUTPUT),
    "logger": Setting(Role.OUTPUT),
    "compile": Setting(Role.EXECUTION),
    "data.num_workers": Setting(Role.EXECUTION),
    "data.holdout": Setting(Role.RESULT, before=None),
    "trainer.checkpoint_every_minutes": Setting(Role.EXECUTION),
    "trainer.checkpoint_every_n_steps": Setting(Role.EXECUTION),
    "trainer.keep_checkpoints": Setting(Role.EXECUTION),
    "trainer.progress_bar": Setting(Role.EXECUTION),
    "trainer.threads": Setting(Role.EXECUTION),
    "trainer.num_nodes": Setting(Role.RESULT, before=1),
    "trainer.accumulate_batches": Setting(Role.RESULT, before=1),
    "trainer.stop_when": Setting(Role.RESULT, before=None),
    "deterministic": Setting(Role.RESULT, before=False),
    "optimizer.weight_decay_on": Setting(Role.RESULT, before="all"),
    "pos.scale": Setting(Role.RESULT, before=1.0),
    "pos.scaling": Setting(Role.RESULT, before="none"),
    "pos.factor": Setting(Role.RESULT, before=1.0),
    "pos.fraction": Setting(Role.RESULT, before=1.0),
    "seeds": Setting(Role.REPLICAS, before=1),
    "model.dropout": Setting(Role.TRAINING),
    "model.scale_residuals": Setting(Role.TRAINING),
    "model.token_file": Setting(Role.TRAINING),
    "model.token_init": Setting(Role.TRAINING),
    "model.token_init_std": Setting(Role.TRAINING),
}


def role_of(key: str) -> Role:
    """The role of a setting by its key, ``trainer.threads``, or by the key of an override, ``hydra/launcher``."""
    parts = key.replace("/", ".").split(".")
    found = (SETTINGS.get(".".join(parts[:n])) for n in range(1, len(parts) + 1))
    return next((setting.role for setting in found if setting is not None), Role.RESULT)


def without(settings: Mapping[str, Value], *roles: Role) -> dict[str, Value]:
    """The settings, by key, that have none of these roles."""
    return {key: value for key, value in settings.items() if role_of(key) not in roles}


def flat(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as ``a.b.c`` to value."""
    result: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = value
    return result


def choice_of(target: str) -> str:
    """What is typed for a class, ``pos=sinusoidal``: the name of its module, because each has a file of its own."""
    return str(target).split(".")[-2:][0]


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide the result, flat; two jobs that agree in them are the same job."""
    return {
        key: value
        for key, value in without(flat(settings), *NOT_IN_IDENTITY).items()
        if not (key in SETTINGS and value == SETTINGS[key].before)
    }


def model_settings(job: TrainConfig) -> dict[str, Any]:
    """The settings that the model is built from, flat: with others a checkpoint is another model's, even if it fits."""
    return flat({part: settings for part, settings in asdict(job).items() if part in ("pos", "task", "model")})


def job_key(job: TrainConfig) -> str:
    """A short name for the settings that decide the result: the same for the same job in every sweep."""
    text = json.dumps(identity(asdict(job)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Each setting that differs, as ``optimizer.lr was 0.005 and is 0.001``; empty if none does."""

    def value(settings: Mapping[str, Any], key: str) -> Any:
        older = SETTINGS[key].before if key in SETTINGS else NO_VALUE
        return settings.get(key, "not set" if older is NO_VALUE else older)

    return "; ".join(
        f"{key} was {value(before, key)} and is {value(now, key)}"
        for key in sorted(before.keys() | now.keys())
        if value(before, key) != value(now, key)
    )
