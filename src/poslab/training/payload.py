"""What a checkpoint holds beside Lightning's own state; checkpoints of older versions are translated."""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from poslab.errors import ConfigError
from poslab.model import LanguageModel
from poslab.training.replicas import Replicas

KEY = "poslab"
FORMAT = 3


def state_of(
    settings: Mapping[str, Any],
    replicas: Replicas,
    random_states: Sequence[Tensor],
    epoch_losses: Float[Tensor, "ranks steps n"] | None,
    window_losses: Float[Tensor, "ranks window n"] | None,
    device: torch.device,
) -> dict[str, Any]:
    """The state of a training beside its weights, in plain values: a checkpoint has to load with ``weights_only``.

    Args:
        settings: what the model was built from, flat.
        replicas: of the run.
        random_states: torch's random state of each replica.
        epoch_losses: of the steps of this epoch so far.
        window_losses: of the steps since the last logged one.
        device: of the models.
    """
    return {
        "format": FORMAT,
        "settings": dict(settings),
        "epoch_losses": epoch_losses,
        "window_losses": window_losses,
        # What a GPU draws its dropout from; a CPU draws from torch's own state.
        "device_random_state": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "replicas": [
            {
                "random_state": state,
                "batches_by_seq_len": dict(replica.batches_by_seq_len),
                "diverged": replica.diverged,
                "stopped": replica.stopped,
                "start": dict(replica.start),
            }
            for replica, state in zip(replicas, random_states, strict=True)
        ],
    }


def restore(stored: Mapping[str, Any], replicas: Replicas, device: torch.device) -> list[Tensor]:
    """Restore what `state_of` returned; returns torch's random state of each replica."""
    if stored["device_random_state"] is not None:
        torch.cuda.set_rng_state(stored["device_random_state"], device)
    for replica, one in zip(replicas, stored["replicas"], strict=True):
        replica.batches_by_seq_len = Counter(one["batches_by_seq_len"])
        replica.diverged = one["diverged"]
        # Older checkpoints have none.
        replica.stopped = one.get("stopped")
        # Without it, it stays what the models of this process started from.
        replica.start = one.get("start") or replica.start
    return [one["random_state"] for one in stored["replicas"]]


def check_shapes(there: Mapping[str, Tensor], here: Mapping[str, Tensor]) -> None:
    """Refuse the weights of another model before Lightning fills in those that fit.

    Raises:
        ConfigError: names the first difference.
    """
    for name in sorted(there.keys() | here.keys()):
        shapes = [tuple(one[name].shape) if name in one else "missing" for one in (there, here)]
        if shapes[0] != shapes[1]:
            raise ConfigError(f"the checkpoint is another model's: {name} is {shapes[0]} there and {shapes[1]} here")


def translate(checkpoint: dict[str, Any]) -> None:
    """Turn a checkpoint of an older format into one of the present format, in place.

    Format 1 had one layout for a single model and another for ``seeds=N``, and counted updates as Lightning's automatic
    optimisation does. Format 2 had no losses since the last logged step: the first mean after a resume is that of the
    steps after the checkpoint.
    """
    if checkpoint[KEY]["format"] == 1:
        _translate_first(checkpoint)
    if checkpoint[KEY]["format"] == 2:
        checkpoint[KEY] |= {"format": 3, "window_losses": None}


def _translate_first(checkpoint: dict[str, Any]) -> None:
    """Turn a checkpoint of format 1 into one of format 2, in place."""
    stored = checkpoint[KEY]
    if "copies" in stored:
        replicas, losses = stored["copies"], stored.get("epoch_losses")
        weights = checkpoint["state_dict"]
        checkpoint["state_dict"] = {name.replace("stack.", "model.", 1): value for name, value in weights.items()}
    else:
        one = {"random_state": stored["random_state"], "batches_by_seq_len": stored.get("batches_by_seq_len", {})}
        replicas, losses = [{**one, "diverged": None}], stored.get("epoch_loss")
        # (ranks, steps) -> (ranks, steps, 1)
        losses = None if losses is None else losses.unsqueeze(-1)
    checkpoint[KEY] = {
        "format": 2,
        "settings": stored.get("settings", {}),
        "epoch_losses": losses,
        "device_random_state": stored.get("device_random_state"),
        "replicas": replicas,
    }
    fit = checkpoint["loops"]["fit_loop"]
    updates = fit["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]
    fit["epoch_loop.manual_optimization.optim_step_progress"] = updates
    callbacks = checkpoint["callbacks"]
    if "Looks" in callbacks:
        callbacks["Diagnostics"] = {"replicas": callbacks.pop("Looks")["copies"]}


def reopen(checkpoint: dict[str, Any]) -> None:
    """Make a checkpoint of the end of a run one from which the run goes on to a later end, in place.

    If the run ended within an epoch, its last validation and the end of its epoch belong to that end only.
    """
    fit = checkpoint["loops"]["fit_loop"]
    progress = fit["epoch_progress"]
    within = not fit["epoch_loop.batch_progress"]["is_last_batch"]
    if not within or progress["current"]["processed"] < progress["current"]["ready"]:
        return
    for counted in ("current", "total"):
        progress[counted]["processed"] -= 1
    for diagnostics in checkpoint["callbacks"].get("Diagnostics", {}).get("replicas", []):
        for state in diagnostics.values():
            state["validations"] -= 1
    for replica in checkpoint[KEY]["replicas"]:
        if replica.get("stopped") == checkpoint["global_step"]:
            replica["stopped"] = None


def export(model: LanguageModel, settings: Mapping[str, Any], step: int, epoch: int) -> bytes:
    """A checkpoint of one replica's model alone; it loads as a single run's does, but no training resumes from it."""
    content = {
        # Cloned: a view would be saved with the whole tensor behind it.
        "state_dict": {f"model.{name}": value.clone() for name, value in model.state_dict().items()},
        "global_step": step,
        "epoch": epoch,
        KEY: {"format": FORMAT, "settings": dict(settings)},
    }
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()
