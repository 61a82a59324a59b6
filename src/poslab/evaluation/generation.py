"""Generate tokens after a prompt, one at a time."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from poslab.model import LanguageModel
from poslab.tasks import Task
from poslab.tasks.base import IGNORED

LEAST_TEMPERATURE = 1e-3
"""Smallest temperature above 0: with a smaller one, logits divided by it could overflow."""


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
    """Generate ``max_new_tokens`` tokens per row; yields one token (B,) for all rows as soon as it is computed.

    The whole prompt is read in one pass. With the cache, each new token costs one query over all keys; without it, the
    model reads the whole sequence again for each token. Both give the same tokens.

    Args:
        model: in evaluation mode, on any device.
        prompt: token ids (B, T); all rows have the same length.
        max_new_tokens: number of tokens to generate per row.
        use_cache: cache keys and values instead of computing them again.
        temperature: 0 takes the most likely token; above 0 draws from ``softmax(logits / temperature)``.
        top_k: draw only among the k most likely tokens; None: among all.
        seed: seed of the draws, which do not change torch's global random state.

    Raises:
        ValueError: an empty prompt, ``max_new_tokens < 1``, a sequence longer than the context, a ``temperature`` that
            is neither 0 nor at least 0.001, ``top_k < 1`` or with temperature 0, or a model in training mode; names the
            numbers. Raised by the call itself, before the first token is computed.
    """
    length = prompt.shape[1]
    if length < 1 or max_new_tokens < 1:
        raise ValueError(f"prompt of {length} tokens and max_new_tokens {max_new_tokens}: both must be at least 1")
    # The model does not read the last new token.
    needed = length + max_new_tokens - 1
    if needed > model.max_context_length:
        raise ValueError(
            f"a prompt of {length} tokens and {max_new_tokens} new ones need a context of {needed} tokens, "
            f"but the model has a context of {model.max_context_length}; "
            "use a shorter prompt, fewer new tokens, or a longer context"
        )
    if not (temperature == 0 or LEAST_TEMPERATURE <= temperature < float("inf")):
        raise ValueError(f"temperature {temperature} must be 0, or at least {LEAST_TEMPERATURE}")
    if top_k is not None and (top_k < 1 or temperature == 0):
        raise ValueError(f"top_k {top_k} must be at least 1 and needs a temperature above 0; it is {temperature}")
    if model.training:
        raise ValueError("the model is in training mode; call model.eval() first")
    sampler = _Sampler(temperature, top_k, seed)
    generator = _generate_cached if use_cache else _generate_uncached
    return generator(model, prompt, max_new_tokens, sampler)


def _generate_cached(
    model: LanguageModel, prompt: Tensor, max_new_tokens: int, sampler: "_Sampler"
) -> Iterator[Tensor]:
    cache, new = model.new_cache(), prompt
    for _ in range(max_new_tokens):
        token = sampler(model.read(new, cache)[:, -1])
        yield token
        new = token[:, None]


def _generate_uncached(
    model: LanguageModel, prompt: Tensor, max_new_tokens: int, sampler: "_Sampler"
) -> Iterator[Tensor]:
    tokens = prompt
    for _ in range(max_new_tokens):
        # Inside the loop: around it, no_grad would also apply to the caller's code between two tokens.
        with torch.no_grad():
            token = sampler(model(tokens)[:, -1])
        yield token
        tokens = torch.cat((tokens, token[:, None]), dim=1)


class _Sampler:
    """Choose a token per row from logits: the most likely one, or a draw from an own generator."""

    def __init__(self, temperature: float, top_k: int | None, seed: int) -> None:
        self.temperature, self.top_k = temperature, top_k
        # On the CPU, so that the draws are the same for every device.
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
    """A prompt (T,) as in training: a random example of the task up to the token before its answer."""
    tokens, targets = task.sample(np.random.default_rng(seed), 1)
    return tokens[0, : np.flatnonzero(targets[0] != IGNORED)[0] + 1]


def true_answer(task: Task, prompt: Int64[np.ndarray, " t"], max_new_tokens: int) -> list[int]:
    """The tokens that the task's oracle gives after a prompt, at most ``max_new_tokens``; fewer if the answer ends."""
    tokens = prompt
    for _ in range(max_new_tokens):
        target = task.deduce(tokens)[-1]
        if target == IGNORED:
            break
        tokens = np.append(tokens, target)
    return tokens[len(prompt) :].tolist()
