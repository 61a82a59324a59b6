"""``compile=true``: the training step's loss as one compiled function, and what has to be there for that.

What is compiled is a function and never the model: checkpoints keep their names, and whoever looks at the model or
scores it sees the plain one.
"""

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function, one_shape: bool = False) -> Function:
    """The function by torch's compiler; it is compiled when it is first called, and once more if the lengths vary.

    Random numbers are drawn as without it, so that a run is the same within float tolerance.

    Args:
        function: of tensors.
        one_shape: they always have the shapes of the first call. With others, vmap fails in torch's compiler.
    """
    import torch

    # Not `dynamic=True` from the start: a length that never changes makes faster code.
    fast: Any = torch.compile(function, dynamic=False if one_shape else None, options={"fallback_random": True})
    return fast
