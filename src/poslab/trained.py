"""Rebuilds the model of a run from its folder: from ``config.yaml`` and a checkpoint, nothing else.

In a notebook::

    from poslab.trained import load

    job, task, model = load("outputs/runs/NAME")
    logits, weights = model(tokens, return_weights=True)

torch is imported only when a folder with a configuration and a checkpoint has been found.
"""

import io
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from poslab.build import build_model, build_task
from poslab.config.identity import Role, flat, model_settings, role_of, without
from poslab.config.rules import nearest
from poslab.config.schema import TrainConfig, checked
from poslab.errors import ConfigError
from poslab.runs.checkpoint import model_weights
from poslab.runs.folder import RunFolder
from poslab.runs.names import CONFIG_FILE, COPIES, newest
from poslab.runs.result import stored_status
from poslab.runs.settings import stored_settings
from poslab.system.files import read_file
from poslab.tasks import Task

if TYPE_CHECKING:
    import torch

    from poslab.model import LanguageModel

RUNS = Path("outputs/runs")
ELSEWHERE = (Role.HYDRA, Role.ORIGIN)
"""Settings that are not about the model: files that they name may be gone."""


class Trained(NamedTuple):
    """A run's configuration, its task, and its trained model."""

    job: TrainConfig
    task: Task
    model: "LanguageModel"


def load(run: str | Path, checkpoint: str | Path = "last") -> Trained:
    """Load the job, the task and the trained model of a run; the model is on the CPU and in evaluation mode.

    Args:
        run: the run's folder, which may have been moved; ``latest`` for the newest in ``outputs/runs``.
        checkpoint: ``last`` (the state whose numbers the run reported at its end), ``best`` (lowest validation loss),
            ``step_<n>`` (kept by ``trainer.keep_checkpoints``), or a file.

    Raises:
        ConfigError: the run or the checkpoint is missing, or they do not fit each other; one line that names both.
    """
    folder = find_run(run)
    job = settings_of(folder)
    if job.seeds > 1:
        raise ConfigError(
            f"run={folder} holds {job.seeds} replicas; give one, for example run={folder / COPIES / f'seed{job.seed}'}"
        )
    path = find_checkpoint(folder, checkpoint)
    task = build_task(job)
    # Before the model is built, because it has the sizes that the configuration says.
    weights = _weights(path, without(model_settings(job), Role.TRAINING), folder)
    # The checkpoint holds the token table, and the file that it started from may be gone.
    model = build_model(replace(job, model=replace(job.model, token_init="normal", token_file=None)), task)
    _fill(model, weights, path, folder)
    return Trained(job, task, model.eval())


def find_run(run: str | Path) -> Path:
    """Find the folder of a run.

    Raises:
        ConfigError: there is no run; says what is there instead.
    """
    folder = Path(run)
    if str(run) == "latest":
        if (latest := newest(RUNS.glob(f"*/{CONFIG_FILE}"))) is None:
            raise ConfigError(f"run=latest, but {RUNS} holds no run; give a run's folder by run=")
        return latest
    if (folder / CONFIG_FILE).is_file():
        return folder
    if folder.is_file():
        raise ConfigError(f"run={folder} is a file; give the run's folder, and a checkpoint by checkpoint=")
    if folder.is_dir():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{CONFIG_FILE}"))
        hint = f"; give one of its {len(inside)} runs: {', '.join(inside[:4])}" if inside else ""
        raise ConfigError(f"run={folder} holds no run (no {CONFIG_FILE}){hint}{', ...' if len(inside) > 4 else ''}")
    beside = [path.name for path in folder.parent.iterdir()] if folder.parent.is_dir() else []
    near = nearest(folder.name, beside)
    raise ConfigError(f"run={folder} does not exist{f'; did you mean {folder.parent / near}?' if near else ''}")


def find_checkpoint(folder: Path, checkpoint: str | Path) -> Path:
    """Find a checkpoint: ``last``, ``best`` or ``step_<n>`` of a run, or a file.

    Raises:
        ConfigError: it does not exist; names those that do.
    """
    checkpoints = RunFolder(folder).checkpoints
    named = checkpoints / f"{checkpoint}.ckpt"
    if re.fullmatch(r"last|best|step_\d+", str(checkpoint)):
        if named.is_file():
            return named
        there = sorted(path.stem for path in checkpoints.glob("*.ckpt"))
        if there:
            raise ConfigError(f"{folder} has no checkpoint '{checkpoint}'; there are: {', '.join(there)}")
        raise ConfigError(
            f"{folder} has no checkpoint (status: {stored_status(folder)}); "
            "a run saves its first one at the end of an epoch"
        )
    if Path(checkpoint).is_file():
        return Path(checkpoint)
    raise ConfigError(f"checkpoint={checkpoint} does not exist; give last, best, step_<n> or a file")


def settings_of(folder: Path) -> TrainConfig:
    """Read the job in a run's ``config.yaml`` and check it by the same rules as a new one.

    Raises:
        ConfigError: the job breaks a rule; names the file.
    """
    file = folder / CONFIG_FILE
    settings = {key: value for key, value in stored_settings(folder).items() if role_of(key) not in ELSEWHERE}
    # A run writes plain values only. In a file from somebody else, an interpolation could read the environment.
    references = [key for key, value in flat(settings).items() if "${" in str(value)]
    if references:
        raise ConfigError(f"{file}: {references[0]} is not a plain value, but a run writes nothing else")
    try:
        return checked(OmegaConf.create(settings))
    except (OmegaConfBaseException, OverflowError, TypeError, ValueError) as error:
        raise ConfigError(f"{file}: {str(error).splitlines()[0]}") from error


def choose_device(name: str) -> "torch.device":
    """The device of a name: ``auto`` for the accelerator if there is one, else the CPU; or a device as torch names it.

    Raises:
        ConfigError: this machine has no such device.
    """
    import torch

    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.device(name)
        # The way back fails on "meta", which holds no numbers.
        torch.ones(1, device=device).cpu()
        return device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"torch has no device={name} on this machine; use auto or cpu") from error


def in_precision(precision: str, device: "torch.device") -> AbstractContextManager[Any]:
    """Compute in a run's ``trainer.precision``, as its own validation did."""
    import torch

    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def _weights(path: Path, settings: Mapping[str, Any], folder: Path) -> dict[str, "torch.Tensor"]:
    """Read the model's parameters from a checkpoint.

    Args:
        path: of the checkpoint.
        settings: that decide what a trained model computes, flat.
        folder: of the run, for messages.

    Raises:
        ConfigError: the file cannot be read now, is damaged, holds anything but plain values, or was written with other
            settings.
    """
    import torch

    try:
        content = torch.load(io.BytesIO(read_file(path)), map_location="cpu", weights_only=True)
        int(content["global_step"])
        written = dict(content.get("poslab", {}).get("settings", {}))
        weights = model_weights(content)
        if not all(value.is_floating_point() and value.layout == torch.strided for value in weights.values()):
            raise TypeError("a parameter is not a dense tensor of floats")
    except ConfigError:
        raise
    except Exception as error:
        # The library's own text recommends to load the file without this safeguard.
        raise ConfigError(
            f"{path} cannot be read as a checkpoint of plain values ({type(error).__name__}); "
            "it is damaged, or no checkpoint of a run"
        ) from error
    # The shapes do not show, for example, the number of heads: with edited settings the model would be another one.
    for key, value in settings.items():
        if key in written and written[key] != value:
            raise ConfigError(
                f"{path} does not belong to the run in {folder}: it was trained with {key}={written[key]}, "
                f"and {CONFIG_FILE} says {value}"
            )
    return weights


def _fill(model: "LanguageModel", weights: dict[str, "torch.Tensor"], path: Path, folder: Path) -> None:
    """Load the parameters into the model, which must have exactly these.

    Raises:
        ConfigError: they are those of another model; names both files and the first difference.
    """

    try:
        model.load_state_dict(weights)
        for name, value in model.state_dict().items():
            if not value.isfinite().all():
                raise ValueError(f"{name} holds numbers that are not finite")
            if not value.equal(weights[name].to(value.dtype)):
                # The model has one matrix under two names, the file has two matrices.
                raise ValueError(f"{name} has other values there than the parameter that it shares in the run's model")
    except (RuntimeError, ValueError) as error:
        # torch lists all differences, below a line without one.
        difference = str(error).splitlines()[:2][-1].strip()
        raise ConfigError(f"{path} does not belong to the run in {folder}: {difference}") from error
