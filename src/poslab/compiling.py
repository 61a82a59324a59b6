"""``compile=true``: the training step's loss as one compiled function, and what has to be there for that.

What is compiled is a function and never the model: checkpoints keep their names, and whoever looks at the model or
scores it sees the plain one.
"""

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from poslab.config import TrainConfig
from poslab.rules import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])
WITHOUT = "or leave out compile=true"


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


def check_compiler(job: TrainConfig) -> None:
    """Refuse ``compile=true`` where the job or the machine cannot do it; loads nothing of torch's compiler.

    Raises:
        ConfigError: several processes, no C++ compiler, or no headers of Python; says what would help.
    """
    if not job.compile:
        return
    if job.trainer.strategy != "auto":
        raise ConfigError(f"compile=true with trainer.strategy={job.trainer.strategy} is not there yet; {WITHOUT[3:]}")
    # The one that torch would call.
    compiler = os.environ.get("CXX") or {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    if shutil.which(compiler) is None:
        raise ConfigError(
            f"compile=true needs a C++ compiler, and there is no {compiler}; install one, name another by the "
            f"environment variable CXX, {WITHOUT}"
        )
    if not any((Path(sysconfig.get_path(name)) / "Python.h").exists() for name in ("include", "platinclude")):
        raise ConfigError(
            f"compile=true needs the headers of Python, and there is no {sysconfig.get_path('include')}/Python.h; "
            f"install them (the package is called python3-dev or the like), {WITHOUT}"
        )
