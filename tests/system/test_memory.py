"""The memory that a process may use: the machine's, or the least limit on it."""

import math
import resource
from pathlib import Path

import pytest
import torch

from poslab.system import memory
from poslab.system.memory import device_memory_bytes, memory_bytes


def test_the_least_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = memory_bytes()
    assert 2**28 < everything < math.inf
    (tmp_path / "limit").write_text("123456\n", encoding="ascii")
    (tmp_path / "none").write_text("max\n", encoding="ascii")
    monkeypatch.setattr(memory, "CGROUP_LIMITS", (str(tmp_path / "none"), str(tmp_path / "absent")))
    assert memory_bytes() >= everything
    monkeypatch.setattr(memory, "CGROUP_LIMITS", (str(tmp_path / "none"), str(tmp_path / "limit")))
    assert memory_bytes() == 123456
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1000, -1) if kind == resource.RLIMIT_AS else (-1, -1))
    assert memory_bytes() == 1000


def test_memory_is_unlimited_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sysconf")
    monkeypatch.setattr(memory, "CGROUP_LIMITS", ())
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert memory_bytes() == math.inf


def test_a_gpu_counts_where_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: type("P", (), {"total_memory": 5}))
    assert device_memory_bytes("auto") == 5
    assert device_memory_bytes("cpu") == memory_bytes()
