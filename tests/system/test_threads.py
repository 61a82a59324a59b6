"""How many threads a workload gets."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from poslab.system import threads
from poslab.system.threads import available_cores, choose_threads
from support.runs import train

sizes = st.integers(1, 4096)


def test_a_number_is_taken_as_it_is():
    assert choose_threads("3", 16, 12, 32) == 3
    assert choose_threads("1", 4096, 4096, 4096) == 1


def test_the_lesson_s_small_products_get_one_thread(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "available_cores", lambda: 64)
    assert choose_threads("auto", 16, 12, 32) == 1


def test_large_products_get_every_core_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "available_cores", lambda: 8)
    assert choose_threads("auto", 256, 512, 512) == 8


@settings(deadline=None, derandomize=True)
@given(batch=sizes, length=sizes, width=sizes)
def test_more_work_never_gets_fewer_threads(batch: int, length: int, width: int):
    few, more = choose_threads("auto", batch, length, width), choose_threads("auto", 2 * batch, length, width)
    assert 1 <= few <= more <= available_cores()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_only_cores_that_this_process_may_use_count():
    allowed = os.sched_getaffinity(0)
    assert available_cores() == len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_without_affinity_the_machine_s_cores_count(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert available_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores() == 1


def test_a_run_sets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    quick = ("diagnostics=none", "logger=none", "trainer.max_steps=1", "data.val_examples=4")
    train(tmp_path / "one", "trainer.threads=2", *quick)
    train(tmp_path / "auto", *quick)
    assert asked == [2, 1]
