"""What a fit trains: N >= 1 models of one shape behind one interface, and the single model."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from poslab.data.stream import ReplicaBatch
from poslab.evaluation.metrics import Score, score, token_loss
from poslab.model import LanguageModel
from poslab.training.compiling import compiled
from poslab.training.sharding import Whole

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Learner(ABC):
    """N models of one shape that are trained together, each as if it were alone.

    Attributes:
        module: holds all parameters; the LightningModule registers it.
        one_shape: every training batch has to have the same shape.
    """

    module: nn.Module
    one_shape: bool = False

    @property
    @abstractmethod
    def random_states(self) -> Sequence[Tensor]:
        """Torch's random state of each replica: what its next random positions and its dropout are drawn from."""

    @random_states.setter
    @abstractmethod
    def random_states(self, states: Sequence[Tensor]) -> None: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All parameters, each once, by their names in a single model."""
        return self.module.named_parameters()

    @abstractmethod
    def begin(self) -> None:
        """Set the random state to what it was after the models were built."""

    @abstractmethod
    def losses(self, batch: ReplicaBatch) -> Float[Tensor, " n"]:
        """The training loss of each replica (N,), with gradient."""

    @abstractmethod
    def scores(self, batch: ReplicaBatch) -> Score:
        """The validation score of each replica; every sum is (N,)."""

    @abstractmethod
    def gradient_norms(self) -> Float[Tensor, " n"]:
        """The norm of each replica's whole gradient (N,)."""

    @abstractmethod
    def clip(self, norms: Float[Tensor, " n"], max_norm: float) -> None:
        """Scale each replica's gradient to at most ``max_norm``, given the `gradient_norms`."""

    @abstractmethod
    def model_of(self, replica: int) -> LanguageModel:
        """One replica as a plain model with its present values and gradients."""

    def frozen(self, replicas: Sequence[int]) -> AbstractContextManager[None]:
        """Inside, the gradients of these replicas are zero, and an optimiser step leaves their parameters unchanged."""
        return nullcontext()

    def share(self, mesh: "DeviceMesh", keeps_whole: bool) -> None:
        """Cut the parameters into one part for each rank of the mesh; rank 0 keeps a whole model to inspect."""
        raise ValueError(f"{type(self).__name__} cannot be shared among ranks; use trainer=ddp")

    def gather(self) -> None:
        """Update the whole model that `share` keeps; every rank has to call it."""
        return


class OneModel(Learner):
    """A single model, without vmap.

    Its random state is torch's own.

    Args:
        model: as it was built.
        random_state: torch's random state after that.
        compile: whether the training loss is compiled.
    """

    module: LanguageModel

    def __init__(self, model: LanguageModel, random_state: Tensor, compile: bool = False) -> None:
        self.module = model
        self._whole = Whole(model)
        self._built = random_state
        self._loss = compiled(model_loss) if compile else model_loss

    @property
    def random_states(self) -> Sequence[Tensor]:
        return [torch.get_rng_state()]

    @random_states.setter
    def random_states(self, states: Sequence[Tensor]) -> None:
        torch.set_rng_state(states[0])

    def begin(self) -> None:
        torch.set_rng_state(self._built)

    def losses(self, batch: ReplicaBatch) -> Float[Tensor, " n"]:
        return self._loss(self.module, batch.tokens[0], batch.targets[0]).unsqueeze(0)

    def scores(self, batch: ReplicaBatch) -> Score:
        return Score(*(part.unsqueeze(0) for part in score(self.module(batch.tokens[0]), batch.targets[0])))

    def gradient_norms(self) -> Float[Tensor, " n"]:
        return torch.nn.utils.get_total_norm(self._gradients()).reshape(1)

    def clip(self, norms: Float[Tensor, " n"], max_norm: float) -> None:
        torch.nn.utils.clip_grads_with_norm_(self.module.parameters(), max_norm, norms.reshape(()))

    def model_of(self, replica: int) -> LanguageModel:
        return self._whole.model

    def share(self, mesh: "DeviceMesh", keeps_whole: bool) -> None:
        self._whole.share(mesh, keeps_whole)

    def gather(self) -> None:
        self._whole.gather()

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.module.parameters() if parameter.grad is not None]


def model_loss(model: LanguageModel, tokens: Tensor, targets: Tensor) -> Tensor:
    """`token_loss` of a model."""
    return token_loss(model(tokens), targets)
