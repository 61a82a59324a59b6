"""Several models of one shape as one: their parameters stacked, their computation batched over the copies."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from poslab.evaluation.metrics import Score, score
from poslab.model import LanguageModel
from poslab.tasks.base import IGNORED
from poslab.training.kernels import FusedAttention


class ModelStack(nn.Module):
    """N language models of one shape; every parameter is one tensor whose first axis is the copy.

    No number of one copy reaches another: the gradient of a sum over copies is each copy's own.

    Args:
        models: the copies, as each was built.
        random_states: torch's random state after each was built; from there on each draws what it would alone.

    Raises:
        ValueError: the copies differ in more than their parameters.
    """

    def __init__(self, models: Sequence[LanguageModel], random_states: Sequence[Tensor]) -> None:
        super().__init__()
        self.random_states = list(random_states)
        # In a list, where torch does not look for parameters: they follow the stack, see `copy_of`.
        self._copies = [*models]
        self.stacked = stack(models)
        # Looked up once: a bundle of many copies is looked at copy by copy, also at steps.
        self._pairs = [[*zip(model.parameters(), self.stacked.parameters(), strict=True)] for model in models]
        # By every name: looking for what is tied takes as long at each step as half of a small model's forward pass.
        self._by_name = dict(self.stacked.named_parameters(remove_duplicate=False))

    def __len__(self) -> int:
        return len(self._copies)

    def train(self, mode: bool = True) -> "ModelStack":
        super().train(mode)
        # In evaluation on an accelerator it reads the ids, and vmap lets nobody read; the data has been checked.
        self.stacked.token_embedding.train()
        return self

    def forward(self, tokens: Int64[Tensor, "n b t"], seq_lens: Sequence[int]) -> Float[Tensor, "n b t v"]:
        """Logits (N, B, T, V) of the tokens (N, B, T).

        Args:
            tokens: of each copy; shorter rows are padded at their end, which a causal model does not see.
            seq_lens: T of each copy before the padding.
        """
        return self.logits(tokens, self.draw(tokens, seq_lens) if self.training else None)

    def logits(self, tokens: Int64[Tensor, "n b t"], drawn: Int64[Tensor, "n t"] | None) -> Float[Tensor, "n b t v"]:
        """The same with what was drawn for it."""
        parameters: dict[str, Tensor] = {**self._by_name}
        # A compiler fuses by itself, and sees through neither of a function's own vmap nor a mode.
        attention = sdpa_kernel(SDPBackend.MATH) if torch.compiler.is_compiling() else FusedAttention()
        with attention:
            return vmap(self._one, in_dims=(0, 0, None if drawn is None else 0))(parameters, tokens, drawn)

    def _one(self, parameters: dict[str, Tensor], tokens: Tensor, drawn: Tensor | None) -> Tensor:
        positions = self.stacked.positions
        positions.drawn = drawn
        try:
            logits: Tensor = functional_call(self.stacked, parameters, (tokens,), tie_weights=False)
            return logits
        finally:
            positions.drawn = None

    def draw(self, tokens: Tensor, seq_lens: Sequence[int]) -> Int64[Tensor, "n t"] | None:
        """What each copy's own run would draw for this batch; None for a scheme that draws nothing."""
        drawn: list[Tensor] = []
        with own_random_state():
            for index, seq_len in enumerate(seq_lens):
                torch.set_rng_state(self.random_states[index])
                positions = self.stacked.positions.draw(seq_len)
                if positions is None:
                    return None
                self.random_states[index] = torch.get_rng_state()
                # Whatever padding is given, no token sees it.
                drawn.append(nn.functional.pad(positions, (0, tokens.shape[-1] - seq_len)))
        return torch.stack(drawn).to(tokens.device)

    def copy_of(self, index: int) -> LanguageModel:
        """One copy as a plain model, with its values and gradients as they are now: they are shared, not copied."""
        model = self._copies[index]
        pairs = self._pairs[index]
        if pairs[0][0].device != pairs[0][1].device:
            # What else it holds follows its parameters.
            model.to(pairs[0][1].device)
        for own, all_copies in pairs:
            own.data = all_copies.detach()[index]
            own.grad = None if all_copies.grad is None else all_copies.grad[index]
        return model.train(self.training) if model.training != self.training else model


def stack(models: Sequence[LanguageModel]) -> LanguageModel:
    """The first model with every parameter replaced by those of all models, (N, ...); what was shared stays shared.

    Raises:
        ValueError: the models differ in more than their parameters; names a buffer.
    """
    first = models[0]
    for name, buffer in first.named_buffers():
        if any(not torch.equal(buffer, model.get_buffer(name)) for model in models[1:]):
            raise ValueError(f"the copies' buffer {name} differs from seed to seed, and only parameters may")
    stacked = copy.deepcopy(first)
    by_place = [dict(model.named_parameters(remove_duplicate=False)) for model in models]
    made: dict[int, nn.Parameter] = {}
    for place, parameter in list(stacked.named_parameters(remove_duplicate=False)):
        if id(parameter) not in made:
            rows = torch.stack([parameters[place].detach() for parameters in by_place])
            made[id(parameter)] = nn.Parameter(rows, requires_grad=parameter.requires_grad)
        owner, _, name = place.rpartition(".")
        setattr(stacked.get_submodule(owner), name, made[id(parameter)])
    return stacked


@contextmanager
def own_random_state() -> Iterator[None]:
    """Inside, torch's random state may be set at will; afterwards it is what it was."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def losses(logits: Float[Tensor, "n b t v"], targets: Int64[Tensor, "n b t"]) -> Float[Tensor, " n"]:
    """`token_loss` of every copy, by one kernel."""
    by_token = F.cross_entropy(
        logits.flatten(0, 2).float(), targets.flatten(), ignore_index=IGNORED, reduction="none"
    ).view(len(logits), -1)
    return by_token.sum(dim=1) / (targets != IGNORED).flatten(1).sum(dim=1)


def scores(logits: Float[Tensor, "n b t v"], targets: Int64[Tensor, "n b t"]) -> Score:
    """`score` of every copy: each sum is (N,)."""
    return Score(*vmap(score)(logits, targets))


def gradient_norms(parameters: Sequence[Tensor]) -> Float[Tensor, " n"]:
    """The norm of each copy's whole gradient (N,), as `torch.nn.utils.get_total_norm` gives it for one model."""
    norms = [p.grad.reshape(len(p), -1).norm(dim=1) for p in parameters if p.grad is not None]
    return torch.stack(norms).norm(dim=0)


def clip_gradients(parameters: Sequence[Tensor], max_norm: float) -> None:
    """Scale each copy's gradient down to ``max_norm`` where it is above, as `torch.nn.utils.clip_grad_norm_` does."""
    factors = (max_norm / (gradient_norms(parameters) + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factors.view(-1, *[1] * (parameter.dim() - 1)))
