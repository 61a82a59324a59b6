"""N models of one shape as one learner: stacked parameters, computation batched over the replicas."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from poslab.data.stream import ReplicaBatch
from poslab.evaluation.metrics import Score, score
from poslab.model import LanguageModel
from poslab.tasks.base import IGNORED
from poslab.training.compiling import compiled
from poslab.training.kernels import FusedAttention
from poslab.training.learner import Learner


class ModelStack(nn.Module):
    """N language models of one shape; every parameter is one tensor whose first axis is the replica.

    Args:
        models: the replicas, as each was built.
        random_states: torch's random state after each was built; each replica draws from its own.

    Raises:
        ValueError: the replicas differ in more than their parameters.
    """

    def __init__(self, models: Sequence[LanguageModel], random_states: Sequence[Tensor]) -> None:
        super().__init__()
        self.random_states = list(random_states)
        # In a list, where torch does not look for parameters: `model_of` gives them the stack's.
        self._models = [*models]
        self.stacked = stack(models)
        # Looked up once: inspections take every replica in turn, also at steps.
        self._pairs = [[*zip(model.parameters(), self.stacked.parameters(), strict=True)] for model in models]
        # Under every name: a search for tied parameters at each step takes half as long as a small forward pass.
        self._by_name = dict(self.stacked.named_parameters(remove_duplicate=False))

    def __len__(self) -> int:
        return len(self._models)

    def train(self, mode: bool = True) -> "ModelStack":
        super().train(mode)
        # On an accelerator, evaluation mode reads the ids, which vmap forbids; the data has been checked.
        self.stacked.token_embedding.train()
        return self

    def forward(self, tokens: Int64[Tensor, "n b t"], seq_lens: Sequence[int]) -> Float[Tensor, "n b t v"]:
        """Logits (N, B, T, V) of the tokens (N, B, T).

        Args:
            tokens: of each replica; shorter rows are padded at their end, which a causal model does not see.
            seq_lens: T of each replica without the padding.
        """
        return self.logits(tokens, self.draw(tokens, seq_lens) if self.training else None)

    def logits(self, tokens: Int64[Tensor, "n b t"], drawn: Int64[Tensor, "n t"] | None) -> Float[Tensor, "n b t v"]:
        """Logits (N, B, T, V) of the tokens at the positions that `draw` gave."""
        parameters: dict[str, Tensor] = {**self._by_name}
        # A compiler fuses by itself, and supports neither a function's own vmap nor a mode.
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
        """The positions that each replica's own run would draw for this batch; None for a scheme without chance."""
        drawn: list[Tensor] = []
        with own_random_state():
            for index, seq_len in enumerate(seq_lens):
                torch.set_rng_state(self.random_states[index])
                positions = self.stacked.positions.draw(seq_len)
                if positions is None:
                    return None
                self.random_states[index] = torch.get_rng_state()
                # No token sees the padding, so its positions do not matter.
                drawn.append(nn.functional.pad(positions, (0, tokens.shape[-1] - seq_len)))
        return torch.stack(drawn).to(tokens.device)

    def model_of(self, replica: int) -> LanguageModel:
        """One replica as a plain model that shares its values and gradients with the stack."""
        model = self._models[replica]
        pairs = self._pairs[replica]
        if pairs[0][0].device != pairs[0][1].device:
            # Its buffers follow its parameters.
            model.to(pairs[0][1].device)
        for own, stacked in pairs:
            own.data = stacked.detach()[replica]
            own.grad = None if stacked.grad is None else stacked.grad[replica]
        return model.train(self.training) if model.training != self.training else model


class StackLearner(Learner):
    """N models as one batched computation; no number of one replica reaches another.

    Args:
        stack: the models.
        compile: whether the training loss is compiled.
    """

    module: ModelStack

    def __init__(self, stack: ModelStack, compile: bool = False) -> None:
        self.module = stack
        self.one_shape = compile
        self._losses = compiled(stack_losses, one_shape=True) if compile else stack_losses

    @property
    def random_states(self) -> Sequence[Tensor]:
        return self.module.random_states

    @random_states.setter
    def random_states(self, states: Sequence[Tensor]) -> None:
        self.module.random_states = list(states)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.stacked.named_parameters()

    def begin(self) -> None:
        """Nothing: the stack keeps each replica's random state itself."""

    def losses(self, batch: ReplicaBatch) -> Float[Tensor, " n"]:
        drawn = self.module.draw(batch.tokens, batch.seq_lens)
        return self._losses(self.module, batch.tokens, drawn, batch.targets)

    def scores(self, batch: ReplicaBatch) -> Score:
        return scores(self.module(batch.tokens, batch.seq_lens), batch.targets)

    def gradient_norms(self) -> Float[Tensor, " n"]:
        return gradient_norms([*self.module.parameters()])

    def clip(self, norms: Float[Tensor, " n"], max_norm: float) -> None:
        clip_gradients([*self.module.parameters()], norms, max_norm)

    def model_of(self, replica: int) -> LanguageModel:
        return self.module.model_of(replica)

    @contextmanager
    def frozen(self, replicas: Sequence[int]) -> Iterator[None]:
        if not replicas:
            yield
            return
        parameters = [*self.module.parameters()]
        rows = torch.tensor(replicas, device=parameters[0].device)
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.index_fill_(0, rows, 0.0)
        # A gradient of zero does not keep a parameter in place: Adam has its momentum, AdamW its decay.
        kept = [parameter.detach().index_select(0, rows) for parameter in parameters]
        yield
        for parameter, values in zip(parameters, kept, strict=True):
            parameter.data.index_copy_(0, rows, values)


def stack(models: Sequence[LanguageModel]) -> LanguageModel:
    """The first model with every parameter replaced by those of all models, (N, ...); what was shared stays shared.

    Raises:
        ValueError: the models differ in more than their parameters; names a buffer.
    """
    first = models[0]
    for name, buffer in first.named_buffers():
        if any(not torch.equal(buffer, model.get_buffer(name)) for model in models[1:]):
            raise ValueError(f"the replicas' buffer {name} differs from seed to seed, and only parameters may")
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
    """`token_loss` of every replica, by one kernel."""
    by_token = F.cross_entropy(
        logits.flatten(0, 2).float(), targets.flatten(), ignore_index=IGNORED, reduction="none"
    ).view(len(logits), -1)
    return by_token.sum(dim=1) / (targets != IGNORED).flatten(1).sum(dim=1)


def scores(logits: Float[Tensor, "n b t v"], targets: Int64[Tensor, "n b t"]) -> Score:
    """`score` of every replica: each sum is (N,)."""
    return Score(*vmap(score)(logits, targets))


def stack_losses(stack: ModelStack, tokens: Tensor, drawn: Tensor | None, targets: Tensor) -> Tensor:
    """`losses` of a stack at drawn positions."""
    return losses(stack.logits(tokens, drawn), targets)


def gradient_norms(parameters: Sequence[Tensor]) -> Float[Tensor, " n"]:
    """The norm of each replica's whole gradient (N,), as `torch.nn.utils.get_total_norm` gives it for one model."""
    norms = [p.grad.reshape(len(p), -1).norm(dim=1) for p in parameters if p.grad is not None]
    return torch.stack(norms).norm(dim=0)


def clip_gradients(parameters: Sequence[Tensor], norms: Float[Tensor, " n"], max_norm: float) -> None:
    """Scale each replica's gradient down to ``max_norm`` where its norm is above, as torch clips a single model's."""
    factors = (max_norm / (norms + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factors.view(-1, *[1] * (parameter.dim() - 1)))
