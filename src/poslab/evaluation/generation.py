"""Writing on after a prompt, token by token."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from poslab.model import LanguageModel
from poslab.tasks import Task
from poslab.tasks.base import IGNORED

# Below this, logits divided by the temperature leave the range of floats.
LEAST_TEMPERATURE = 1e-3


def generate(
    model: LanguageModel,
    prompt: Int64[Tensor, "b t"],
    max_new_tokens: int,
    *,
    use_cache: bool = True,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
) -> Iterator[Int64[Tensor, " b"]]:
    """Yield ``max_new_tokens`` tokens, one (B,) at a time, each as soon as it is known.

    The prompt is read at once. With the cache a token costs what one query over all keys costs; without it the whole
    sequence is read again for each token. Both write the same tokens.

    Args:
        model: in evaluation mode, on any device.
        prompt: token ids (B, T), all rows of one length.
        max_new_tokens: how many.
        use_cache: keep keys and values instead of computing them again.
        temperature: 0 takes the likeliest token, above 0 draws from ``softmax(logits / temperature)``.
        top_k: draw among the k likeliest tokens only; None: among all.
        seed: of the draws, which leave torch's global random state alone.

    Raises:
        ValueError: at the call, before anything is computed: an empty prompt, no tokens to write, more than the context
            holds, a ``temperature`` or ``top_k`` that means nothing, or a model in training mode; names the numbers.
    """
    length = prompt.shape[1]
    if length < 1 or max_new_tokens < 1:
        raise ValueError(f"prompt of {length} tokens and max_new_tokens {max_new_tokens}: both must be at least 1")
    # The last new token is not read.
    needed = length + max_new_tokens - 1
    if needed > model.max_context_length:
        raise ValueError(
            f"a prompt of {length} tokens and {max_new_tokens} new ones need a context of {needed} tokens, "
            f"but the model's holds {model.max_context_length}; "
            "use a shorter prompt, fewer new tokens, or a longer context"
        )
    if not (temperature == 0 or LEAST_TEMPERATURE <= temperature < float("inf")):
        raise ValueError(f"temperature {temperature} must be 0, or at least {LEAST_TEMPERATURE}")
    if top_k is not None and (top_k < 1 or temperature == 0):
        raise ValueError(f"top_k {top_k} must be at least 1 and needs a temperature above 0, which is {temperature}")
    if model.training:
        raise ValueError("the model is in training mode; call model.eval() first")
    choose = _Choice(temperature, top_k, seed)
    return _cached(model, prompt, max_new_tokens, choose) if use_cache else _anew(model, prompt, max_new_tokens, choose)


def _cached(model: LanguageModel, prompt: Tensor, max_new_tokens: int, choose: "_Choice") -> Iterator[Tensor]:
    cache, new = model.new_cache(), prompt
    for _ in range(max_new_tokens):
        token = choose(model.read(new, cache)[:, -1])
        yield token
        new = token[:, None]


def _anew(model: LanguageModel, prompt: Tensor, max_new_tokens: int, choose: "_Choice") -> Iterator[Tensor]:
    tokens = prompt
    for _ in range(max_new_tokens):
        # Not around the loop: between two tokens the caller's code runs, and its gradients are its own affair.
        with torch.no_grad():
            token = choose(model(tokens)[:, -1])
        yield token
        tokens = torch.cat((tokens, token[:, None]), dim=1)


class _Choice:
    """From logits to tokens: the likeliest, or drawn from a generator of its own."""

    def __init__(self, temperature: float, top_k: int | None, seed: int) -> None:
        self.temperature, self.top_k = temperature, top_k
        # On the host, so that every device draws the same.
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, logits: Float[Tensor, "b v"]) -> Int64[Tensor, " b"]:
        if self.temperature == 0:
            return logits.argmax(-1)
        device = logits.device
        logits = logits.float().cpu() / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        return torch.multinomial(logits.softmax(-1), 1, generator=self.generator)[:, 0].to(device)


def example_prompt(task: Task, seed: int) -> Int64[np.ndarray, " t"]:
    """A prompt as training saw them: an example of the task, up to where its answer begins."""
    tokens, targets = task.sample(np.random.default_rng(seed), 1)
    return tokens[0, : np.flatnonzero(targets[0] != IGNORED)[0] + 1]


def true_answer(task: Task, prompt: Int64[np.ndarray, " t"], max_new_tokens: int) -> list[int]:
    """What the task's oracle writes after a prompt; fewer than ``max_new_tokens`` where the answer ends."""
    tokens = prompt
    for _ in range(max_new_tokens):
        target = task.deduce(tokens)[-1]
        if target == IGNORED:
            break
        tokens = np.append(tokens, target)
    return tokens[len(prompt) :].tolist()
