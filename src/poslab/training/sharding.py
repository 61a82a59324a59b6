"""A model of which every rank holds a part: cut, and put together again for whoever looks at the whole."""

import copy
from typing import TYPE_CHECKING

from torch import Tensor
from torch.distributed.tensor import DTensor

from poslab.model import LanguageModel

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Whole:
    """A model in one piece: the model itself, or of one that is shared among ranks a copy on the first rank's CPU.

    Args:
        model: to look at.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self._shared: LanguageModel | None = None
        self._keeps = True

    def share(self, mesh: "DeviceMesh", keeps: bool) -> None:
        """Leave every rank its part of the model: each block is whole only while it computes.

        Args:
            mesh: the ranks.
            keeps: whether this one keeps the copy.
        """
        from torch.distributed.fsdp import fully_shard

        from poslab.model.transformer import Block

        shared, self._keeps = self.model, keeps
        # Before it is cut. Elsewhere nobody looks, and a second model would only take room.
        # In evaluation mode, which whoever looks asks the shared one for: dropout would draw on this rank alone.
        self.model = copy.deepcopy(shared).cpu().eval() if keeps else shared
        for block in [module for module in shared.modules() if isinstance(module, Block)]:
            fully_shard(block, mesh=mesh)
        # The rest together: a head that is the token table must stay in one group with it.
        fully_shard(shared, mesh=mesh)
        self._shared = shared

    def gather(self) -> None:
        """Bring the copy up to date; every rank has to call it."""
        if self._shared is None:
            return
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        values = get_model_state_dict(self._shared, options=options)
        if self._keeps:
            self.model.load_state_dict(values)


def full(value: Tensor) -> Tensor:
    """A tensor in one piece; of one that is shared every rank has to ask."""
    return value.full_tensor() if isinstance(value, DTensor) else value
