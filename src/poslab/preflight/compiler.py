"""Refuses ``compile=true`` if the job or the machine cannot compile."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from poslab.config.schema import TrainConfig
from poslab.errors import ConfigError

WITHOUT = "or leave out compile=true"


def check_compiler(job: TrainConfig) -> None:
    """Refuse ``compile=true`` if the job or the machine cannot compile, without importing torch's compiler.

    Raises:
        ConfigError: several processes, no C++ compiler, or no headers of Python; names the way out.
    """
    if not job.compile:
        return
    if job.trainer.strategy != "auto":
        raise ConfigError(f"compile=true with trainer.strategy={job.trainer.strategy} is not supported; {WITHOUT[3:]}")
    # The compiler that torch calls.
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
