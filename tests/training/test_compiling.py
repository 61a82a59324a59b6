"""``compile=true``: the same run, faster; or a reason why not before anything is made."""

from pathlib import Path

import pytest

from poslab.config.identity import job_key
from poslab.config.schema import checked
from poslab.errors import ConfigError
from poslab.preflight.checks import preflight
from poslab.preflight.compiler import check_compiler
from poslab.training import compiling
from support.configs import compose


def test_it_is_no_setting_that_decides_the_result() -> None:
    assert job_key(checked(compose("compile=true"))) == job_key(checked(compose()))


def test_without_a_compiler_it_is_refused_before_a_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(
        ConfigError, match=r"compile=true needs a C\+\+ compiler.*install one.*or leave out compile=true"
    ):
        preflight(compose("compile=true"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    preflight(compose(), tmp_path / "run")
    # Torch would call the one that CXX names.
    own = tmp_path / "own-c++"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setattr(compiling.sysconfig, "get_path", lambda name: str(tmp_path))
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("CXX", str(own))
    check_compiler(checked(compose("compile=true")))


def test_without_the_headers_of_python_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(compiling.sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ConfigError, match=r"headers of Python.*Python\.h"):
        check_compiler(checked(compose("compile=true")))


def test_several_processes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"compile=true with trainer\.strategy=ddp"):
        check_compiler(checked(compose("compile=true", "trainer=ddp")))
